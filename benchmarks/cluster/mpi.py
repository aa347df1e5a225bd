"""Starting MPI programs on `Hosts`: the command line of each library's mpirun, and the environment that it needs."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .hosts import HERE, Hosts

# A launcher that we are ourselves a child of must not speak to the worlds that we start.
_LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "PMI2_", "HYDI_", "OMPI_", "PRTE_", "MPI_LOCAL", "SLURM_")

# Open MPI as root; all hosts share this machine's cores, so who waits must leave them to others.  Others ignore these.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_osc": "^ucx",
}


def command(hosts: Hosts, python: str | Path, ranks_a_host: int, *args: str | Path) -> list[str]:
    """Return the command, to be run on this machine, that starts `python ARGS...` with so many ranks on each host.

    The mpirun is the one beside `python`, as in a virtual environment that has an MPI from pip.
    """
    mpirun = Path(python).parent / "mpirun"
    if not mpirun.exists():
        raise FileNotFoundError(f"there is no mpirun beside {python}: an MPI from pip is needed there")
    ranks, names, shell = ranks_a_host * len(hosts.names), ",".join(hosts.names), HERE / "remote-shell"
    if is_open_mpi(mpirun):
        options = ["--prtemca", "plm_ssh_agent", shell, "--prefix", mpirun.parent.parent]
        options += ["--host", ",".join(f"{name}:{ranks_a_host}" for name in hosts.names)]
        options += ["--map-by", f"ppr:{ranks_a_host}:node:OVERSUBSCRIBE", "--bind-to", "none"]
    else:
        options = ["-launcher", "ssh", "-launcher-exec", shell, "-hosts", names, "-ppn", ranks_a_host]
    return hosts.on(hosts.names[0], [str(part) for part in (mpirun, *options, "-n", ranks, python, *args)])


def environment(hosts: Hosts, python: str | Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment to run `command` in: `base` (this process's), with what the library needs."""
    return _environment(python, base) | hosts.environment


def local_environment(python: str | Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment to run the mpirun beside `python` in, on this machine, with any number of ranks."""
    return _environment(python, base) | {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def _environment(python: str | Path, base: Mapping[str, str] | None) -> dict[str, str]:
    given = os.environ if base is None else base
    env = {name: value for name, value in given.items() if not name.startswith(_LAUNCHER_VARIABLES)} | _OPEN_MPI
    env["PATH"] = os.pathsep.join([str(Path(python).parent), env.get("PATH", os.defpath)])
    return env


@functools.cache
def is_open_mpi(mpirun: Path) -> bool:
    """Whether an mpirun is Open MPI's; else it is MPICH's or Intel MPI's, which are alike."""
    said = subprocess.run([mpirun, "--version"], env=os.environ | _OPEN_MPI, capture_output=True, text=True, timeout=60)
    return "Open MPI" in said.stdout or "PRRTE" in said.stdout
