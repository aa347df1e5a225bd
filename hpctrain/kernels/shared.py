"""`shared`: functions that are compiled once, whoever calls them, and called through a pointer.

Numba copies a compiled function into each function that calls it and lets LLVM work on it again, level by level: large
inner functions (register tiles, matrix products) make everything above them slow to compile.  A shared function is
machine code of its own.  Callers refer to a pointer by name; the name is known to LLVM from the moment this module's
users are imported, so that callers can be cached.  The pointer first leads to a piece of Python that loads the function
from the cache (or compiles it) and then puts the function itself into the pointer, as dynamic linkers do.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import traceback
from collections.abc import Callable

import llvmlite.binding
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.jit import FASTMATH, callback

_WORD = ir.IntType(64)


def shared(function: Callable, name: str, fastmath: bool = False, lazy: bool = False) -> Callable:
    """Compile `function`, whose arguments are all int64 (numbers or addresses) and which returns nothing, once.

    Return what a kernel calls instead, a function of one tuple with the arguments.  `name` must be unique.  The closure
    of `function` may hold numbers only: they are part of the key it is cached under.  With `lazy` it is compiled when
    it is first called, not with its callers, of which some never call it.
    """
    pointer = _Pointer(function, f"hpctrain_{name}", set(FASTMATH) if fastmath else False)

    @intrinsic
    def call(typingctx, arguments):  # noqa: ANN001, ANN202 (numba's typing protocol)
        if not isinstance(arguments, types.BaseTuple) or len(arguments) != pointer.count:
            return None
        if not lazy:
            pointer.load()

        def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
            module, kind = builder.module, ir.FunctionType(ir.VoidType(), [_WORD] * pointer.count).as_pointer()
            place = module.globals.get(pointer.symbol) or ir.GlobalVariable(module, kind, pointer.symbol)
            place.linkage = "external"
            values = [
                context.cast(builder, builder.extract_value(args[0], i), item, types.int64)
                for i, item in enumerate(arguments)
            ]
            builder.call(builder.load(place), values)
            return context.get_dummy_value()

        return types.void(arguments), generate

    return call


def compile_count() -> int:
    """Return how many shared functions this process compiled rather than loaded."""
    return sum(pointer.compiled is not None and not pointer.compiled.cache_hits for pointer in _Pointer.alive)


class _Pointer:
    """The memory that a name stands for: the address of machine code, or of the Python that finds it."""

    alive: list[_Pointer] = []  # noqa: RUF012 (compiled code refers to their memory, so they must never go away)

    def __init__(self, function: Callable, symbol: str, fastmath: set | bool) -> None:
        self.function, self.symbol, self.fastmath = function, symbol, fastmath
        self.count = len(inspect.signature(function).parameters)
        self.compiled = None
        self.find = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * self.count)(self._first_call)
        self.memory = ctypes.c_void_p(ctypes.cast(self.find, ctypes.c_void_p).value)
        llvmlite.binding.add_symbol(symbol, ctypes.addressof(self.memory))
        self.alive.append(self)

    def load(self) -> None:
        """Load the function from the cache or compile it; afterwards calls go to it directly."""
        if self.compiled is None:
            signature = types.void(*[types.int64] * self.count)
            self.compiled = callback(self.function, signature, error_model="numpy", fastmath=self.fastmath)
            self.memory.value = self.compiled.address

    def _first_call(self, *arguments: int) -> None:
        try:
            self.load()
        except BaseException:  # noqa: BLE001 (compiled code cannot be told: it would go on with wrong numbers)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)
        self.compiled.ctypes(*arguments)
