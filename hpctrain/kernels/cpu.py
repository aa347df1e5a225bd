"""Whether the CPU's matrix unit (Intel AMX: products of tiles of bfloat16) can be used by this process.

Linux asks a process to request the unit's registers once, before their first use; the permission holds for all its
threads and its children.  $HPCTRAIN_MATRIX_UNIT=off leaves the unit alone: products then have the bits that they have
on CPUs without one.

Where it may be used, forward products and input gradients use it as long as it is *wanted*, which whoever trains says
once for a run: with few rows the unit is slower, but a row must have the same bits whatever rows stand beside it, so
that kernels must not look at their number.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

import llvmlite.binding

VARIABLE = "HPCTRAIN_MATRIX_UNIT"
WANTED_SYMBOL = "hpctrain_matrix_unit_wanted"  # the name by which compiled code finds the wish
FEWEST_ROWS = 32  # of a pass, from which on the unit is not slower
_OFF, _ON = "off", "on"
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64


@functools.cache
def has_matrix_unit() -> bool:
    """Request the matrix unit, and say whether this process may use it."""
    if os.environ.get(VARIABLE, _ON) == _OFF:
        return False
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        return False
    if not all(features.get(name) for name in ("amx-tile", "amx-bf16", "avx512f")):
        return False
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def wrong_setting() -> str | None:
    """Return the environment's setting where it is none that is known."""
    value = os.environ.get(VARIABLE, _ON)
    return None if value in (_ON, _OFF, "") else value


_wanted = ctypes.c_int64(1)
llvmlite.binding.add_symbol(WANTED_SYMBOL, ctypes.addressof(_wanted))


def want_matrix_unit(rows: int) -> None:
    """Say how many rows the passes to come have, the same for all of a run."""
    _wanted.value = int(rows >= FEWEST_ROWS)
