"""What `join` does without MPI, and where launcher and library do not match (no MPI is loaded here)."""

import os
import subprocess
import sys

import pytest

import hpctrain.comm
from hpctrain.comm import mpi_group
from hpctrain.comm.single_group import SingleGroup
from hpctrain.errors import UserError

VARIABLES = ("OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "PMI_", "FLUX_", "SLURM_", "PMIX_", "MPI_LOCAL")


class LonelyMpi:
    """What mpi4py shows where the launcher belongs to another library: P worlds of size 1."""

    THREAD_MULTIPLE = 3

    class COMM_WORLD:  # noqa: N801 - MPI's name
        @staticmethod
        def Get_size():  # noqa: N802 - MPI's name
            return 1

    def __init__(self):
        self.started = False

    def Is_initialized(self):  # noqa: N802 - MPI's name
        return self.started

    def Init_thread(self, level):  # noqa: N802 - MPI's name
        self.started = True


@pytest.fixture
def join(monkeypatch):
    for name in list(os.environ):
        if name.startswith(VARIABLES):
            monkeypatch.delenv(name)
    hpctrain.comm.join.cache_clear()
    yield hpctrain.comm.join
    hpctrain.comm.join.cache_clear()


def without_mpi():
    raise RuntimeError("cannot load MPI library")


def test_one_process_without_mpi_gets_one_rank_and_keeps_it(join, monkeypatch):
    monkeypatch.setattr(hpctrain.comm, "_load_mpi", without_mpi)
    group = join()
    assert isinstance(group, SingleGroup)
    assert join() is group


def test_several_processes_without_mpi_are_told_how_to_get_one(join, monkeypatch):
    monkeypatch.setattr(hpctrain.comm, "_load_mpi", without_mpi)
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UserError) as caught:
        join()
    assert caught.value.agreed
    for words in ("4 processes", "cannot load MPI library", 'pip install "hpctrain[mpi]"', "module load"):
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("library", "environ", "started", "words"),
    [
        (
            "Open MPI 5.0.11",
            {"PMI_RANK": "0", "PMI_SIZE": "4"},
            True,
            ["do not match", "mpirun of MPICH", "4 processes", "Open MPI 5.0.11 sees a world of 1", "which -a mpirun"],
        ),
        (
            "MPICH 5.0.2",
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            False,  # MPICH would end the process with a message of its own
            ["do not match", "Open MPI's mpirun", "4 processes", "MPICH 5.0.2 does not start", "which -a mpirun"],
        ),
        (
            "MPICH 5.0.2",
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"},
            True,
            ["do not match", "srun", "8 processes", "MPICH 5.0.2 sees a world of 1", "--mpi=pmi2"],
        ),
    ],
)
def test_a_launcher_of_another_library_is_refused(join, monkeypatch, library, environ, started, words):
    mpi = LonelyMpi()
    monkeypatch.setattr(hpctrain.comm, "_load_mpi", lambda: mpi)
    monkeypatch.setattr(mpi_group, "library_name", lambda: library)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        join()
    assert mpi.started == started
    assert caught.value.agreed
    for word in words:
        assert word in caught.value.message


def test_importing_the_package_loads_no_mpi():
    script = (
        "import sys, hpctrain.comm, hpctrain.comm.mpi_group, hpctrain.comm.executor; print('mpi4py' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: ...\n", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI x@y Distribution, ident: 5.0.11\0", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS\n", "Intel MPI Library 2021.18"),
        ("", "unknown MPI library"),
    ],
)
def test_library_name(text, name):
    assert mpi_group.library_name(text) == name
