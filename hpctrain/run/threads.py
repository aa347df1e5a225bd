"""Threads of a rank: BLAS and numba take as many as the job says (one, unless told otherwise), never all cores each."""

from __future__ import annotations

import numba
import scipy.linalg.cython_blas  # noqa: F401 (loads the BLAS that kernels call, so that its threads can be limited)
import threadpoolctl


def limit_threads(count: int) -> None:
    """Set the threads of every loaded BLAS and OpenMP library and of numba for the rest of the process."""
    threadpoolctl.threadpool_limits(count)
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
