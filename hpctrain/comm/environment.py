"""What the launcher (mpirun, srun, ...) says about this process, read from the environment without MPI.

The one place that reads launcher variables.  It answers before MPI is loaded (who prints a usage error), and it is the
second opinion on MPI's world size: a launcher of one MPI library with the library of another gives P worlds of size 1.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

# (launcher, rank, size).  Open MPI's stand first: where its daemons were started by srun, the PMI variables that a rank
# inherits number the daemons, not the ranks.
_OPEN_MPI = "Open MPI's mpirun"
_PAIRS = (
    (_OPEN_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("mpirun of MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"),
    ("flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
)
_SLURM = ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class Launched:
    """This process among those launched together; `launcher` is a phrase for people, None without one.

    `size` is a lower bound where the launcher does not tell (PMIx gives the rank alone), and 1 where nothing is known.
    """

    rank: int
    size: int
    launcher: str | None


def launched(environ: Mapping[str, str] | None = None) -> Launched:
    """Return what the environment says; a pure function of the mapping (default: this process's environment)."""
    environ = os.environ if environ is None else environ
    for launcher, rank_name, size_name in _PAIRS:
        rank, size = _count(environ, rank_name), _count(environ, size_name)
        if rank is not None and size:
            return Launched(rank, size, _under_slurm(launcher, rank, size, environ))
    launcher, rank_name, size_name = _SLURM
    rank, size = _count(environ, rank_name), _count(environ, size_name)
    # Only the step's variables count: SLURM_NTASKS stands in every batch script, which is one process.
    if rank is not None and size:
        return Launched(rank, size, launcher)
    rank = _count(environ, "PMIX_RANK")
    if rank is not None:
        return Launched(rank, max(rank + 1, _count(environ, "MPI_LOCALNRANKS") or 1), "a PMIx launcher")
    local_size = _count(environ, "MPI_LOCALNRANKS")
    if local_size:
        return Launched(_count(environ, "MPI_LOCALRANKID") or 0, local_size, "mpirun of MPICH or Intel MPI")
    return Launched(0, 1, None)


def launched_rank() -> int:
    """Return this process's rank by the launcher's word: who may print before MPI is up, or if it does not come up."""
    return launched().rank


def cannot_start(found: Launched, library: str) -> bool:
    """Whether this MPI library ("MPICH 5.0.2") would abort the process when started under this launcher.

    MPICH and Intel MPI do under Open MPI's mpirun, with a message about PMI versions that helps nobody.
    """
    return found.launcher == _OPEN_MPI and library.startswith(("MPICH", "Intel"))


def _under_slurm(launcher: str, rank: int, size: int, environ: Mapping[str, str]) -> str:
    """Name srun where it is what set the PMI variables (srun --mpi=pmi2): its step has the same rank and size."""
    name, rank_name, size_name = _SLURM
    same = _count(environ, rank_name) == rank and _count(environ, size_name) == size
    return name if same and "PMI_RANK" in environ and "MPI_LOCALNRANKS" not in environ else launcher


def _count(environ: Mapping[str, str], name: str) -> int | None:
    """Read a whole number from 0 up; what is missing or no number counts as not said."""
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() else None
