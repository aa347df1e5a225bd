"""exp, expm1, log, log1p, softplus, tanh, sigmoid, erf for use inside kernels, in a form that LLVM vectorises.

LLVM calls libm one element at a time; these have no branches and no calls, so a loop over an array becomes vector code.
Call them on scalars within a `@kernel`, as `exp(x[i])`: float32 goes through the polynomials here, float64 through libm
(there accuracy matters, not speed).  Errors in float32 are 1 to 3 units in the last place (erf 6); NaN, infinities,
and denormal arguments and results are right.

Every operation is one correctly rounded instruction (fused multiply-adds are written out, fast-math is off), so an
element has the same bits in a vector body and in its scalar tail, whatever the loop around it looks like.

Polynomials are near-minimax fits of the stated functions (Lawson's reweighted least squares in float64).  Reductions
are the textbook ones (Muller, Elementary Functions, 3rd edition, chapter 11).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from numba.core import types
from numba.extending import intrinsic

from hpctrain.kernels.jit import kernel
from hpctrain.kernels.vector_ir import Value

# Numba puts a function's fast-math flags on all its instructions, those of intrinsics included: so these stand alone.
_exact = functools.partial(kernel, fastmath=False, forceinline=True, cache=False)

_LOG2_E = math.log2(math.e)
# ln 2 in two parts; the product of the first, which has few bits, with a whole number |n| < 2^11 is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, math.log(2.0) - 0.693359375
_EXP_MAX, _EXP_MIN = 89.0, -104.0  # beyond: infinity, zero
_EXPM1_MIN, _TANH_MAX = -40.0, 10.0  # beyond: -1, 1
_ERF_MAX = 3.93  # beyond: 1
_MIN_NORMAL, _MAX = 2.0**-126, 2.0**128 - 2.0**104
_TINY = 2.0**-25  # below, expm1(x), log1p(x) and tanh(x) are x
_SQRT_HALF_BITS = 0x3F3504F3
# (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2
_EXPM1_TAIL = (0.49999998144, 0.166665431766, 0.041667201816, 0.008366580476, 0.001388250758)
# (log(1 + f) - f) / f^2 for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
_LOG_TAIL = (
    *(-0.499999883141, 0.333333255072, -0.250015848115, 0.20001984594, -0.166090566357, 0.14181634882),
    *(-0.132429811797, 0.129055034259, -0.076230611358),
)
# erf(x) / x = P(x^2) / Q(x^2)
_ERF_P = (1.128379145392, 0.1907839183472, 0.05279027524968, 0.003779601997848, 0.0002848064868263, 2.041947161987e-6)
_ERF_Q = (1.0, 0.5024105657207, 0.1142575361278, 0.01499743120862, 0.001165206935838, 3.800371403430e-5)


def _reduced(x: Value) -> tuple[Value, Value]:
    """Whole n and r with x = n ln 2 + r, |r| <= ln(2) / 2."""
    n = (x * _LOG2_E).nearest()
    return n, n.times_plus(-_LN2_LOW, n.times_plus(-_LN2_HIGH, x))


def _reduced_expm1(r: Value) -> Value:
    """e^r - 1 for |r| <= ln(2) / 2."""
    return (r * r).times_plus(r.polynomial(_EXPM1_TAIL), r)


def _log_of_scaled(f: Value, k: Value) -> Value:
    """log((1 + f) 2^k) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1."""
    tail = f * f * f.polynomial(_LOG_TAIL)
    return k.times_plus(_LN2_HIGH, k.times_plus(_LN2_LOW, tail) + f)


def _between(x: Value, low: float, high: float) -> Value:
    """x cut to [low, high]; NaN becomes `high` (its conversion to a whole number would be undefined)."""
    below = (x < high).then(x, high)
    return (below > low).then(below, low)


def _exp(x: Value) -> Value:
    """e^x."""
    n, r = _reduced(_between(x, _EXP_MIN, _EXP_MAX))
    # 2^n in two factors: it may be no normal number itself.  The first product is exact, the second rounds once.
    half = (n * 0.5).nearest()
    value = (_reduced_expm1(r) + 1.0) * half.power_of_two() * (n - half).power_of_two()
    return x.is_nan().then(x, value)


def _expm1(x: Value) -> Value:
    """e^x - 1, right to the last places around zero too."""
    n, r = _reduced(_between(x, _EXPM1_MIN, _EXP_MAX))
    # 2^(n - 1), doubled at the end: 2^128 is no float32.
    scale = (n - 1.0).power_of_two()
    value = scale.times_plus(_reduced_expm1(r), scale - 0.5) * 2.0
    return (x.absolute() > _TINY).then(value, x)


def _log(x: Value) -> Value:
    """Natural logarithm; -infinity at 0, NaN below."""
    tiny = x < _MIN_NORMAL
    normal = _between(tiny.then(x * 2.0**23, x), _MIN_NORMAL, _MAX)
    k = normal.exponent(_SQRT_HALF_BITS)
    value = _log_of_scaled(normal.scaled_down(k) - 1.0, tiny.then(k - 23.0, k))
    value = (x > _MAX).then(x, value)
    return (x > 0.0).then(value, x.equals(0.0).then(x.constant(-math.inf), math.nan))


def _log1p(x: Value) -> Value:
    """log(1 + x), right to the last places around zero too."""
    bounded = _between(x, -1.0 + 2.0**-24, _MAX)
    k = (bounded + 1.0).exponent(_SQRT_HALF_BITS)
    # f = (1 + x) / 2^k - 1 without rounding 1 + x first; by 2^(2 - k), since 2^-k may be no normal number.
    scale = (-k + 2.0).power_of_two()
    value = _log_of_scaled((bounded * 0.25).times_plus(scale, scale.times_plus(0.25, -1.0)), k)
    value = (x.absolute() < _TINY).then(x, (x > _MAX).then(x, value))
    return (x > -1.0).then(value, x.equals(-1.0).then(x.constant(-math.inf), math.nan))


def _softplus(x: Value) -> Value:
    """log(1 + e^x), as max(x, 0) + log1p(e^-|x|), which cannot overflow."""
    e = _exp(-x.absolute())
    # log1p where 0 <= e <= 1: 1 + e is in [1, 2], so k is 0 or 1.
    upper = e > math.sqrt(2.0) - 1.0
    f = upper.then(e.times_plus(0.5, -0.5), e)
    value = (x > 0.0).then(x, 0.0) + _log_of_scaled(f, upper.then(x.constant(1.0), 0.0))
    return x.is_nan().then(x, value)


def _sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), by e^-|x| alone, which cannot overflow."""
    e = _exp(-x.absolute())
    return (x < 0.0).then(e, 1.0) / (e + 1.0)


def _tanh(x: Value) -> Value:
    """Hyperbolic tangent: t / (t + 2) with t = expm1(2 |x|), and the sign of x."""
    size = x.absolute()
    n, r = _reduced(_between(size, 0.0, _TANH_MAX) * 2.0)
    scale = n.power_of_two()
    t = scale.times_plus(_reduced_expm1(r), scale - 1.0)
    return (size > _TINY).then((t / (t + 2.0)).with_sign_of(x), x)


def _erf(x: Value) -> Value:
    """Error function: 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x."""
    size = x.absolute()
    bounded = _between(size, 0.0, _ERF_MAX)
    square = bounded * bounded
    value = bounded * square.polynomial(_ERF_P) / square.polynomial(_ERF_Q)
    value = (size < _ERF_MAX).then((value < 1.0).then(value, 1.0), 1.0)
    return x.is_nan().then(x, value.with_sign_of(x))


def _softplus64(x: Value) -> Value:
    return (x > 0.0).then(x, (x < 0.0).then(x.constant(0.0), x)) + (-x.absolute()).call("exp").call("log1p")


def _sigmoid64(x: Value) -> Value:
    e = (-x.absolute()).call("exp")
    return (x < 0.0).then(e, 1.0) / (e + 1.0)


def _emitting(float32: Callable[[Value], Value], float64: Callable[[Value], Value]) -> Callable:
    """Make an intrinsic of two formulas."""

    def typed(typingctx, x):  # noqa: ANN001, ANN202 (numba's typing protocol)
        formula = {types.float32: float32, types.float64: float64}.get(x)
        if formula is None:
            return None

        def generate(context, builder, signature, args):  # noqa: ANN001, ANN202
            return formula(Value(builder, args[0])).value

        return x(x), generate

    return intrinsic(typed)


_emit_exp = _emitting(_exp, lambda x: x.call("exp"))
_emit_expm1 = _emitting(_expm1, lambda x: x.call("expm1"))
_emit_log = _emitting(_log, lambda x: x.call("log"))
_emit_log1p = _emitting(_log1p, lambda x: x.call("log1p"))
_emit_softplus = _emitting(_softplus, _softplus64)
_emit_sigmoid = _emitting(_sigmoid, _sigmoid64)
_emit_tanh = _emitting(_tanh, lambda x: x.call("tanh"))
_emit_erf = _emitting(_erf, lambda x: x.call("erf"))


@_exact
def exp(x: float) -> float:
    """e^x."""
    return _emit_exp(x)


@_exact
def expm1(x: float) -> float:
    """e^x - 1, right to the last places around zero too."""
    return _emit_expm1(x)


@_exact
def log(x: float) -> float:
    """Natural logarithm; -infinity at 0, NaN below."""
    return _emit_log(x)


@_exact
def log1p(x: float) -> float:
    """log(1 + x), right to the last places around zero too."""
    return _emit_log1p(x)


@_exact
def softplus(x: float) -> float:
    """log(1 + e^x); it cannot overflow."""
    return _emit_softplus(x)


@_exact
def sigmoid(x: float) -> float:
    """1 / (1 + e^-x); it cannot overflow."""
    return _emit_sigmoid(x)


@_exact
def tanh(x: float) -> float:
    """Hyperbolic tangent."""
    return _emit_tanh(x)


@_exact
def erf(x: float) -> float:
    """Error function: 2 / sqrt(pi) times the integral of e^-t^2 from 0 to x."""
    return _emit_erf(x)
