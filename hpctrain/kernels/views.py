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


@intrinsic
def view(typingctx, buffer, offset, shape):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Return a C-contiguous array of `shape` (a tuple) on a buffer, from element `offset` on.  Nothing is checked.

    The result does not own the memory and must not outlive the call that it is made for.
    """
    if not isinstance(buffer, types.Array) or buffer.layout != "C" or not isinstance(shape, types.UniTuple):
        raise TypingError("view takes a contiguous array, an offset and a tuple of integers")
    result = types.Array(buffer.dtype, shape.count, "C")

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        source = context.make_array(signature.args[0])(context, builder, args[0])
        array = context.make_array(result)(context, builder)
        word = context.get_value_type(types.intp)
        item_bytes = context.get_abi_sizeof(context.get_data_type(buffer.dtype))
        sizes = [builder.extract_value(args[2], axis) for axis in range(shape.count)]
        stride = ir.Constant(word, item_bytes)
        strides = [stride]
        for size in reversed(sizes[1:]):
            stride = builder.mul(stride, size)
            strides.insert(0, stride)
        context.populate_array(
            array,
            data=builder.gep(source.data, [args[1]]),
            shape=sizes,
            strides=strides,
            itemsize=ir.Constant(word, item_bytes),
            meminfo=None,
            parent=None,
        )
        return array._getvalue()

    return result(buffer, types.intp, types.UniTuple(types.intp, shape.count)), generate


@intrinsic
def keep_apart(typingctx):  # noqa: ANN001, ANN201
    """Forbid LLVM to inline the function in which this stands."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate
