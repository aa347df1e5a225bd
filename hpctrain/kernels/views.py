"""Views and boundaries for generated code: what keeps a composed step quick to compile.

Slicing and reshaping an array costs LLVM dozens of instructions and checks at each use; a composed step has hundreds
of uses.  `view` is a pointer and a shape.  `keep_apart` keeps LLVM from copying a function into every place that calls
it, so that compiling does not grow with a network's depth.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel


@intrinsic
def view(typingctx, buffer, offset, shape):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return a C-contiguous array of `shape` (a tuple) on a buffer, from element `offset` on.  Nothing is checked.

    The result does not own the memory and must not outlive the call that it is made for.
    """
    result = _view_type(buffer, shape)

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return _view_of(context, builder, result, data, args[1], args[2])

    return result(buffer, types.intp, types.UniTuple(types.intp, shape.count)), generate


@intrinsic
def view_of_either(typingctx, buffer, other, which, offset, shape):  # noqa: ANN001, ANN201
    """Return a `view` of `buffer` where `which` is 0, else of `other`: one function for both, compiled once."""
    result = _view_type(buffer, shape)
    if not isinstance(other, types.Array) or other.layout != "C" or other.dtype != buffer.dtype:
        raise TypingError(f"both buffers hold numbers of one type, not {buffer} and {other}")

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        first, second = (context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 1))
        is_first = builder.icmp_signed("==", args[2], ir.Constant(args[2].type, 0))
        return _view_of(context, builder, result, builder.select(is_first, first, second), args[3], args[4])

    sizes = types.UniTuple(types.intp, shape.count)
    return result(buffer, other, types.intp, types.intp, sizes), generate


def _view_type(buffer: types.Type, shape: types.Type) -> types.Array:
    if not isinstance(buffer, types.Array) or buffer.layout != "C" or not isinstance(shape, types.UniTuple):
        raise TypingError("view takes a contiguous array, an offset and a tuple of integers")
    return types.Array(buffer.dtype, shape.count, "C")


def _view_of(context, builder, result, data, offset, shape):  # noqa: ANN001, ANN202
    """Write the code that makes an array of type `result` at element `offset` of `data`."""
    array = context.make_array(result)(context, builder)
    word = context.get_value_type(types.intp)
    item_bytes = context.get_abi_sizeof(context.get_data_type(result.dtype))
    sizes = [builder.extract_value(shape, axis) for axis in range(result.ndim)]
    stride = ir.Constant(word, item_bytes)
    strides = [stride]
    for size in reversed(sizes[1:]):
        stride = builder.mul(stride, size)
        strides.insert(0, stride)
    context.populate_array(
        array,
        data=builder.gep(data, [offset]),
        shape=sizes,
        strides=strides,
        itemsize=ir.Constant(word, item_bytes),
        meminfo=None,
        parent=None,
    )
    return array._getvalue()


@kernel(cache=False, no_cpython_wrapper=True)
def rows_of(array, row, rows, total):  # noqa: ANN001, ANN201
    """Return the part of an array for `total` rows that belongs to the `rows` rows from `row` on."""
    each = array.shape[0] // total
    return array[row * each : (row + rows) * each]


@intrinsic
def keep_apart(typingctx):  # noqa: ANN001, ANN201
    """Forbid LLVM to inline the function in which this stands."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def merge_in(typingctx):  # noqa: ANN001, ANN201
    """Make LLVM inline the function in which this stands: what it is given is then known in it."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        builder.function.attributes.add("alwaysinline")
        return context.get_dummy_value()

    return types.void(), generate
