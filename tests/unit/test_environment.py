"""What the launcher's variables mean, launcher by launcher."""

import pytest

from hpctrain.comm.environment import launched, launched_rank

BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_NPROCS": "16"}


@pytest.mark.parametrize(
    ("environ", "rank", "size"),
    [
        pytest.param({}, 0, 1, id="nothing"),
        pytest.param({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, 2, 4, id="mpich"),
        pytest.param({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "3"}, 3, 8, id="openmpi"),
        pytest.param({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, 1, 2, id="mvapich"),
        pytest.param(BATCH_SCRIPT, 0, 1, id="a batch script is one process"),
        pytest.param({**BATCH_SCRIPT, "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16"}, 5, 16, id="srun"),
        pytest.param(
            # Open MPI's daemons are started by srun, one a node; the ranks inherit the daemons' variables.
            {
                **BATCH_SCRIPT,
                "SLURM_PROCID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "PMI_RANK": "1",
                "PMI_SIZE": "2",
                "OMPI_COMM_WORLD_RANK": "9",
                "OMPI_COMM_WORLD_SIZE": "16",
            },
            9,
            16,
            id="openmpi under slurm",
        ),
        pytest.param(
            {**BATCH_SCRIPT, "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "9", "PMI_SIZE": "16"},
            9,
            16,
            id="mpich under slurm",
        ),
        pytest.param({"PMIX_RANK": "3"}, 3, 4, id="pmix tells the rank alone"),
        pytest.param({"MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "2"}, 2, 4, id="only the local count"),
        pytest.param({"PMI_RANK": "1", "PMI_SIZE": ""}, 0, 1, id="half a pair says nothing"),
        pytest.param({"PMI_RANK": "x", "PMI_SIZE": "-4"}, 0, 1, id="not numbers"),
    ],
)
def test_rank_and_size(environ, rank, size):
    found = launched(environ)
    assert (found.rank, found.size) == (rank, size)


def test_the_launcher_is_named():
    assert launched({}).launcher is None
    assert "MPICH" in launched({"PMI_RANK": "0", "PMI_SIZE": "4"}).launcher
    assert "Open MPI" in launched({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}).launcher


def test_srun_with_pmi2_is_srun_and_not_mpirun():
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "PMI_RANK": "1", "PMI_SIZE": "4"}
    assert launched(step).launcher == "srun"
    assert "mpirun" in launched({**step, "MPI_LOCALNRANKS": "4"}).launcher


def test_launched_rank_reads_the_process_environment(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert launched_rank() == 3
