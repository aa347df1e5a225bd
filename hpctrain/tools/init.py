"""The verb `init`: a job file guessed from the data, runnable as it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from hpctrain.errors import UserError

TIME_S = 20.0  # for looking at values


def command(files: Sequence[str]) -> int:
    """Print a job for files on the first rank, and return the exit code."""
    from hpctrain.comm.environment import launched

    if launched().rank != 0:
        return 0
    try:
        print(init(files), end="", flush=True)
    except UserError as error:
        print(f"hpctrain: error: {error.message}", file=sys.stderr, flush=True)
        return 2
    return 0


def init(files: Sequence[str]) -> str:
    """Return the text of a job for HDF5 files (paths, globs, folders); `UserError` where nothing fits."""
    from hpctrain.data.files import expand
    from hpctrain.tools.guessing.choose import guess
    from hpctrain.tools.guessing.job import job_text
    from hpctrain.tools.guessing.survey import Survey
    from hpctrain.tools.inspecting.values import BUDGET_BYTES, Limits

    paths = expand([str(path) for path in files], os.getcwd())
    limits = Limits(BUDGET_BYTES, time.monotonic() + TIME_S)
    return job_text(guess(Survey.of(paths, limits)))
