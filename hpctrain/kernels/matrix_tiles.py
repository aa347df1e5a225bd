"""The instructions of the CPU's matrix unit (Intel AMX), for use in kernels: eight tile registers of 16 x 64 bytes.

Intel Architecture Instruction Set Extensions Programming Reference, chapter 3.  A tile holds 16 x 16 float32, or 16 x
32 bfloat16.  `tile_multiply` adds to 16 x 16 sums the products of 16 x 16 *pairs*: a tile of A is [row][pair], a tile
of B [pair][column], each pair being the two bfloat16 of 32 bits.  Numbers below the smallest normal one count as zero.

`tiles_begin` comes before the others in a kernel, and `tiles_end` after them; not to be compiled where
`cpu.has_matrix_unit()` is false.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hpctrain.kernels.cpu import WANTED_SYMBOL

TILE_ROWS = 16
TILE_BYTES = 1024
_ROW_BYTES = 64
_REGISTERS = 8

_BYTE, _WORD, _POINTER = ir.IntType(8), ir.IntType(64), ir.PointerType()
# Palette 1, then from byte 16 the bytes of a row and from byte 48 the rows, of each register.
_SHAPES = bytes([1, *[0] * 15, *[_ROW_BYTES, 0] * 8, *[0] * 16, *[TILE_ROWS] * _REGISTERS, *[0] * 8])


@intrinsic
def unit_is_wanted(typingctx):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Whether `cpu.want_matrix_unit` was told of enough rows."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        place = builder.module.globals.get(WANTED_SYMBOL) or ir.GlobalVariable(builder.module, _WORD, WANTED_SYMBOL)
        place.linkage = "external"
        return builder.icmp_signed("!=", builder.load(place), ir.Constant(_WORD, 0))

    return types.boolean(), generate


@intrinsic
def tiles_begin(typingctx):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Give all tile registers their full shape, and clear them."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        kind = ir.ArrayType(_BYTE, len(_SHAPES))
        shapes = cgutils.global_constant(builder, "hpctrain_tile_shapes", ir.Constant(kind, bytearray(_SHAPES)))
        _emit(context, builder, "ldtilecfg", [], [builder.ptrtoint(shapes, _WORD)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def tiles_end(typingctx):  # noqa: ANN001, ANN201
    """Leave the tile registers: the system then has nothing to save when it switches threads."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _emit(context, builder, "tilerelease", [], [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic(prefer_literal=True)
def tile_clear(typingctx, tile):  # noqa: ANN001, ANN201
    """Set a register (a literal 0 to 7) to zero."""
    return _signature("tilezero", [tile], [])


@intrinsic(prefer_literal=True)
def tile_load(typingctx, tile, address, stride):  # noqa: ANN001, ANN201
    """Load 16 rows of 64 bytes that are `stride` bytes apart."""
    return _signature("tileloadd64", [tile], [address, stride])


@intrinsic(prefer_literal=True)
def tile_store(typingctx, tile, address, stride):  # noqa: ANN001, ANN201
    """Store a register as 16 rows of 64 bytes, `stride` bytes apart."""
    return _signature("tilestored64", [tile], [address, stride])


@intrinsic(prefer_literal=True)
def tile_multiply(typingctx, sums, a, b):  # noqa: ANN001, ANN201
    """sums[i, j] += sum over pairs p of a[i, p][0] b[p, j][0] + a[i, p][1] b[p, j][1]; a, b are bfloat16."""
    return _signature("tdpbf16ps", [sums, a, b], [])


def _signature(name: str, tiles: list[types.Type], words: list[types.Type]) -> tuple:
    """Return what an intrinsic returns: its type, and the function that writes its instruction."""
    if not all(isinstance(tile, types.IntegerLiteral) and 0 <= tile.literal_value < _REGISTERS for tile in tiles):
        raise TypingError(f"tile registers are literal numbers from 0 to {_REGISTERS - 1}")

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        _emit(context, builder, name, [tile.literal_value for tile in tiles], args[len(tiles) :])
        return context.get_dummy_value()

    return types.void(*tiles, *[types.int64] * len(words)), generate


def _emit(context: object, builder: ir.IRBuilder, name: str, tiles: list[int], words: list[ir.Value]) -> None:
    """Call LLVM's function of an instruction; the first of `words` is an address."""
    values = [ir.Constant(_BYTE, tile) for tile in tiles]
    values += [builder.inttoptr(word, _POINTER) for word in words[:1]] + list(words[1:])
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)
