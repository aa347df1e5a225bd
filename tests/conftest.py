"""What all tests share: where compiled kernels are kept, and which tests run in this process.

`python -m pytest` runs everything; the tests in `mpi/` are then launched by `test_mpi_worlds.py`.  Under
`mpirun ... python -m pytest --with-mpi` only the tests in `mpi/` run, so that nothing launches itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import hosts as several_hosts
from benchmarks.cluster import open_mpi as second_environment
from benchmarks.cluster import slurm as batch_system
from benchmarks.cluster.hosts import Hosts
from benchmarks.cluster.slurm import Slurm

MPI_TESTS = Path(__file__).resolve().parent / "mpi"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' compiled kernels apart from the user's, and warm from one run of the tests to the next."""
    if cache := getattr(config, "cache", None):
        os.environ.setdefault("HPCTRAIN_CACHE_DIR", str(cache.mkdir("kernels")))
    asked = (Path(config.invocation_params.dir, arg.split("::")[0]).resolve() for arg in config.args)
    if not config.getoption("--with-mpi") and any(path.is_relative_to(MPI_TESTS) for path in asked):
        raise pytest.UsageError("these tests need several ranks: mpirun -n 3 python -m pytest --with-mpi tests/mpi")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave `mpi/` out when not launched with --with-mpi."""
    return True if collection_path == MPI_TESTS and not config.getoption("--with-mpi") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave all but `mpi/` out when launched with --with-mpi."""
    if config.getoption("--with-mpi"):
        items[:] = [item for item in items if item.path.is_relative_to(MPI_TESTS)]


@pytest.fixture(scope="session")
def place_for_hosts() -> None:
    """Nothing, where there can be several hosts on this machine."""
    if reason := several_hosts.why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def hosts(place_for_hosts: None) -> Iterator[Hosts]:
    """Four hosts on this machine, with links of 1 Gbit/s between them."""
    with Hosts() as made:
        yield made


@pytest.fixture(scope="module")
def slurm(hosts: Hosts) -> Slurm:
    """Slurm over the hosts, a node each."""
    if reason := batch_system.why_not():
        pytest.skip(reason)
    return Slurm(hosts)


@pytest.fixture(scope="session")
def open_mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a second environment, with Open MPI; kept from one run of the tests to the next."""
    cache = getattr(request.config, "cache", None)
    try:
        return second_environment.environment(cache.mkdir("open-mpi") if cache else tmp_path_factory.mktemp("open-mpi"))
    except RuntimeError as error:
        pytest.skip(str(error))
