"""`import hpctrain`: its names are there, and nothing is loaded before it is used."""

import subprocess
import sys

import pytest

import hpctrain
from hpctrain.job import Job
from hpctrain.version import __version__


def run(script: str) -> None:
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_names():
    assert hpctrain.Job is Job
    assert hpctrain.__version__ == __version__
    with pytest.raises(AttributeError, match="no attribute 'Jobb'"):
        _ = hpctrain.Jobb


def test_importing_loads_nothing_heavy():
    run(
        "import sys, hpctrain\n"
        "sys.exit(' '.join({'numpy', 'numba', 'h5py', 'mpi4py', 'pydantic'} & sys.modules.keys()) or 0)\n"
    )


def test_names_are_the_functions_whatever_was_imported_before():
    run(
        "from hpctrain.training import checkpoint\n"
        "from hpctrain import evaluate, train\n"
        "from hpctrain.run import launch\n"
        "assert train is launch.train\n"
        "assert evaluate is launch.evaluate\n"
    )
