"""Communication: the only package that knows MPI.  `join()` gives the group of all launched ranks.

MPI is loaded by the first `join()`, never by an import.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

from hpctrain.comm.environment import Launched, cannot_start, launched
from hpctrain.comm.group import Group
from hpctrain.errors import UserError

__all__ = ["Group", "join"]


@functools.cache
def join() -> Group:
    """Return the group of all launched ranks, the same object each time; initializes MPI when first called.

    Without an MPI library a process that was launched alone gets a one-rank group.  `UserError` (agreed: every launched
    process finds the same) when more were launched but there is no MPI, or when MPI does not see them.
    """
    found = launched()
    try:
        mpi = _load_mpi()
    except (ImportError, RuntimeError) as error:
        # mpi4py is not installed, or is but finds no libmpi.
        if found.size > 1:
            raise _no_mpi(found, error) from None
        from hpctrain.comm.single_group import SingleGroup

        return SingleGroup()
    from hpctrain.comm.ending import Ending
    from hpctrain.comm.mpi_group import MpiGroup, library_name

    library = library_name()
    if cannot_start(found, library):
        raise _mismatch(found, library, "does not start under it")
    world = _start(mpi)
    if world.Get_size() == 1 and found.size > 1:
        raise _mismatch(found, library, "sees a world of 1")
    group = MpiGroup(world)
    if group.size > 1:
        group.ending = Ending(world)
    return group


def _load_mpi() -> ModuleType:
    import mpi4py

    # Not started by the import, so that a library which would abort under this launcher is not started at all.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    from mpi4py import MPI

    return MPI


def _start(mpi: ModuleType) -> Any:
    if not mpi.Is_initialized():
        with warnings.catch_warnings():
            # mpi4py warns of a launcher that does not match; `join` raises an error that also says what to do.
            warnings.simplefilter("ignore", RuntimeWarning)
            # For a communication thread beside the main one; costs nothing measurable when there is none.
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
    return mpi.COMM_WORLD


def _no_mpi(found: Launched, error: Exception) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(
        f"{found.size} processes were launched by {found.launcher}, but no MPI library can be loaded",
        found=reason,
        allowed="one process without MPI, several with one",
        hint='install an MPI into this environment, `pip install "hpctrain[mpi]"`, or load the cluster\'s MPI module '
        "(`module load mpich`, `module load openmpi`); or start one process, without mpirun",
        agreed=True,
    )


def _mismatch(found: Launched, library: str, effect: str) -> UserError:
    if found.launcher == "srun":
        hint = (
            "tell srun how this library starts: `srun --mpi=pmi2` for MPICH and Intel MPI, `srun --mpi=pmix` for "
            "Open MPI (`srun --mpi=list` shows what there is); or use the library's own mpirun in the batch script"
        )
    else:
        hint = (
            "use the mpirun that belongs to this library (`which -a mpirun` shows all of them; one from pip stands "
            "beside `python` in the virtual environment), or make mpi4py load the launcher's library (`module load`, "
            "or MPI4PY_LIBMPI=/path/to/libmpi.so)"
        )
    return UserError(
        "launcher and MPI library do not match, so the processes cannot work together",
        found=f"{found.launcher} started {found.size} processes, but {library} {effect}",
        allowed="a launcher and a library of the same MPI",
        hint=hint,
        agreed=True,
    )
