"""`kernel_in_place`: elementwise kernels whose result may stand in the memory of an argument.

LLVM vectorises a loop that reads one array and writes another only where they are apart, which it checks when the loop
starts: in place, the loop would run element by element.  So the kernel is compiled twice into one function: once for
arrays that are apart, once with the *same* array for both, where there is nothing to check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel


def kernel_in_place(source: str, target: str, **options: object) -> Callable:
    """Compile a kernel whose argument `target` may be the very array that is given for `source`.

    `options` are those of `numba.njit`.
    """

    def decorate(formula: Callable) -> Callable:
        names = list(inspect.signature(formula).parameters)
        in_place = [target if name == source else name for name in names]
        text = (
            f"def {formula.__name__}({', '.join(names)}):\n"
            f"    if starts_where({source}, {target}):\n"
            f"        formula({', '.join(in_place)})\n"
            "    else:\n"
            f"        formula({', '.join(names)})\n"
        )
        # Inlined before LLVM sees it, which else would vectorise the formula by itself, with its check.
        body = {"formula": kernel(formula, cache=False, inline="always", **options), "starts_where": starts_where}
        # Under the formula's file: a change there is a change of this kernel.
        exec(compile(text, inspect.getfile(formula), "exec"), body)  # noqa: S102
        chosen = body[formula.__name__]
        chosen.__doc__, chosen.__module__ = formula.__doc__, formula.__module__
        # Numba cannot find the source of a made function again: it is cached as a part of what calls it.
        return kernel(chosen, cache=False, **options)

    return decorate


@intrinsic
def starts_where(typingctx, one, other):  # noqa: ANN001, ANN201 (numba's typing protocol)
    """Whether two arrays start at the same address."""

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        first, second = (
            builder.ptrtoint(
                context.make_array(kind)(context, builder, value).data, context.get_value_type(types.uintp)
            )
            for kind, value in zip(signature.args, args, strict=True)
        )
        return builder.icmp_unsigned("==", first, second)

    return types.boolean(one, other), generate


@intrinsic
def choose(typingctx, condition, yes, no):  # noqa: ANN001, ANN201
    """`yes` where the condition holds, else `no` (numbers of one type); both are read, and there is no branch.

    Of `a[i] = 0 if condition else a[i]` LLVM makes a store under a condition, which it does not vectorise.
    """
    if yes != no or condition != types.boolean:
        return None

    def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
        return builder.select(args[0], args[1], args[2])

    return yes(condition, yes, no), generate
