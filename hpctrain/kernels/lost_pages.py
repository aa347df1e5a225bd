"""What happens when a mapped file has become shorter: the system stops whoever looks at pages that are gone (SIGBUS).

Nothing can be raised then; a handler can still say why, by the few calls that are allowed in it.
"""

from __future__ import annotations

import ctypes
import functools
import signal

import numpy as np
from numba.core import types, typing
from numba.core.ccallback import CFunc

from hpctrain.kernels.jit import callback

EXIT_CODE = 2
_TEXT = np.frombuffer(
    b"error: a data file has become shorter while it was read: part of a mapped file of data.files is gone\n"
    b"  allowed: files that nobody writes to while they are read\n"
    b"  hint: wait until what writes it is done, or train on a copy\n",
    np.uint8,
)
_STDERR = 2

_write = types.ExternalFunction("write", typing.signature(types.intp, types.int32, types.uintp, types.uintp))
_exit = types.ExternalFunction("_exit", typing.signature(types.void, types.int32))


def _say_and_end(number: int) -> None:
    _write(_STDERR, _TEXT.ctypes.data, _TEXT.size)
    _exit(EXIT_CODE)


@functools.cache
def watch() -> CFunc:
    """From now on end the process with a message where pages of a mapped file are gone, in any of its threads.

    Returns the handler, which is kept as long as the process lives.
    """
    handler = callback(_say_and_end, types.void(types.int32))
    system = ctypes.CDLL(None)
    system.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    system.signal.restype = ctypes.c_void_p
    system.signal(signal.SIGBUS, handler.address)
    return handler
