"""`gemm`: matrix products by BLAS inside compiled code, with accumulation into the result.

Numba's own `np.dot` can only overwrite its result; gradients are *added*, so the BLAS routine behind it is called here
with its full interface.  The BLAS is scipy's (the one numba links to).
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

_KINDS = {types.float32: "s", types.float64: "d"}


@intrinsic
def gemm(typingctx, trans_a, trans_b, a, b, beta, c):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Compute C = op(A) op(B) + beta C for 2-D C-contiguous arrays of one float type.

    `trans_a`, `trans_b` are literal 0 or 1: op(X) is X or its transpose.  `beta` is 0.0 (C is overwritten, whatever it
    held) or 1.0 (C is added to).  The shapes must fit: op(A) (m, k), op(B) (k, n), C (m, n); they are not checked here.
    """
    if a.dtype not in _KINDS or not (a.dtype == b.dtype == c.dtype) or not (a.layout == b.layout == c.layout == "C"):
        raise TypingError("gemm needs C-contiguous float32 or float64 arrays of one type")
    from numba.np.linalg import ensure_blas  # the compiler's: compiled code is loaded without it

    ensure_blas()
    kind = _KINDS[a.dtype]

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        size = context.get_value_type(types.intp)
        char, pointer = ir.IntType(8), ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(
            ir.IntType(32),
            [char, char, char, size, size, size, pointer, pointer, size, pointer, size, pointer, pointer, size],
        )
        function = cgutils.get_or_insert_function(builder.module, function_type, "numba_xxgemm")
        a_, b_, c_ = (context.make_array(signature.args[i])(context, builder, args[i]) for i in (2, 3, 5))
        shapes = [cgutils.unpack_tuple(builder, array.shape, 2) for array in (a_, b_, c_)]
        value_type = context.get_value_type(a.dtype)
        one = ir.Constant(size, 1)

        def scalar(value):  # noqa: ANN001, ANN202
            return builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)

        def letter(flag):  # noqa: ANN001, ANN202
            is_set = builder.icmp_signed("!=", flag, ir.Constant(flag.type, 0))
            return builder.select(is_set, ir.Constant(char, ord("t")), ir.Constant(char, ord("n")))

        def leading(shape):  # noqa: ANN001, ANN202
            # BLAS refuses a leading dimension of zero even where it would not be used.
            return builder.select(builder.icmp_signed(">", shape[1], one), shape[1], one)

        m, n = shapes[2]
        k = builder.select(builder.icmp_signed("!=", args[0], ir.Constant(args[0].type, 0)), shapes[0][0], shapes[0][1])
        # BLAS is column-major: a C-contiguous matrix is its transpose there, so C^T = op(B)^T op(A)^T is computed.
        builder.call(
            function,
            [
                ir.Constant(char, ord(kind)),
                letter(args[1]),
                letter(args[0]),
                n,
                m,
                k,
                scalar(ir.Constant(value_type, 1.0)),
                builder.bitcast(b_.data, pointer),
                leading(shapes[1]),
                builder.bitcast(a_.data, pointer),
                leading(shapes[0]),
                scalar(context.cast(builder, args[4], signature.args[4], a.dtype)),
                builder.bitcast(c_.data, pointer),
                leading(shapes[2]),
            ],
        )
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, a, b, a.dtype, c), generate
