"""Runs every test of `tests/mpi` under `mpirun -n 1` to `-n 5`, each world with a time limit that shows stacks."""

from __future__ import annotations

import re

import pytest
from launching import ROOT, mpirun

WORLD_SIZES = (1, 2, 3, 4, 5)
TEST_LIMIT_S = 60  # one test; a rank over it shows its stacks and exits, which ends the whole world
WORLD_LIMIT_S = 200  # all tests of one world

INNER = ("-m", "pytest", "--with-mpi", "tests/mpi", "-q", "-x", "--tb=short", "-p", "no:cacheprovider")


@pytest.mark.parametrize("ranks", WORLD_SIZES)
def test_world(ranks: int) -> None:
    limits = (f"--timeout={TEST_LIMIT_S}", "--timeout-method=thread")
    done = mpirun(ranks, *INNER, *limits, timeout=WORLD_LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.output}"
    assert re.search(r"\b[1-9]\d* passed", done.stdout), f"no test ran\n{done.output}"
