"""Whether the CPU's matrix unit (Intel AMX: products of tiles of bfloat16) can be used by this process.

Linux asks a process to request the unit's registers once, before their first use; the permission holds for all its
threads and its children.  $HPCTRAIN_MATRIX_UNIT=off leaves the unit alone: products then have the bits that they have
on CPUs without one.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

import llvmlite.binding

VARIABLE = "HPCTRAIN_MATRIX_UNIT"
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64


@functools.cache
def has_matrix_unit() -> bool:
    """Request the matrix unit, and say whether this process may use it."""
    if os.environ.get(VARIABLE, "").lower() in ("off", "0", "no", "false"):
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
