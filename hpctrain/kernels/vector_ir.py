"""`Value`: LLVM values with Python's operators, for writing arithmetic inside an `@intrinsic` as formulas.

The same formula serves a scalar and a vector, float32 and float64.  Every operator emits one correctly rounded
instruction without fast-math flags: what is computed does not depend on the code around it.
"""

from __future__ import annotations

from llvmlite import ir

_SIZES = {"float": (32, 23, 127), "double": (64, 52, 1023)}  # type -> bits, bits of the fraction, bias of the exponent


class Value:
    """A float (or a comparison's result) in the code that `builder` writes; numbers beside it take its type."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    def constant(self, number: float) -> Value:
        """Return `number` in this value's type."""
        kind = self.value.type
        return self._wrap(ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number))

    def __add__(self, other: Value | float) -> Value:
        return self._wrap(self.builder.fadd(self.value, self._operand(other)))

    def __sub__(self, other: Value | float) -> Value:
        return self._wrap(self.builder.fsub(self.value, self._operand(other)))

    def __mul__(self, other: Value | float) -> Value:
        return self._wrap(self.builder.fmul(self.value, self._operand(other)))

    def __truediv__(self, other: Value | float) -> Value:
        return self._wrap(self.builder.fdiv(self.value, self._operand(other)))

    def __neg__(self) -> Value:
        return self._wrap(self.builder.fneg(self.value))

    # Comparisons with NaN are false.
    def __lt__(self, other: Value | float) -> Value:
        return self._wrap(self.builder.fcmp_ordered("<", self.value, self._operand(other)))

    def __gt__(self, other: Value | float) -> Value:
        return self._wrap(self.builder.fcmp_ordered(">", self.value, self._operand(other)))

    def equals(self, other: Value | float) -> Value:
        """Whether both are the same number."""
        return self._wrap(self.builder.fcmp_ordered("==", self.value, self._operand(other)))

    def is_nan(self) -> Value:
        """Whether this is no number."""
        return self._wrap(self.builder.fcmp_unordered("uno", self.value, self.value))

    def then(self, yes: Value | float, no: Value | float) -> Value:
        """Where this comparison holds `yes`, else `no`; both are computed.  One of the two must be a Value."""
        kind = yes if isinstance(yes, Value) else no
        return kind._wrap(self.builder.select(self.value, kind._operand(yes), kind._operand(no)))

    def times_plus(self, factor: Value | float, term: Value | float) -> Value:
        """self * factor + term with one rounding."""
        return self._intrinsic("fma", self._wrap(self._operand(factor)), self._wrap(self._operand(term)))

    def polynomial(self, coefficients: tuple[float, ...]) -> Value:
        """c[0] + c[1] x + c[2] x^2 + ... by Horner's rule."""
        total = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = total.times_plus(self, coefficient)
        return total

    def nearest(self) -> Value:
        """The nearest whole number, ties to even."""
        return self._intrinsic("rint")

    def absolute(self) -> Value:
        """|x|."""
        return self._intrinsic("fabs")

    def with_sign_of(self, other: Value) -> Value:
        """|x| with the sign of `other`."""
        return self._intrinsic("copysign", other)

    def power_of_two(self) -> Value:
        """2^n for a whole number n such that 2^n is a normal number."""
        _, fraction, bias = self._layout()
        biased = self.builder.add(self._whole(), self._int(bias))
        return self._wrap(self.builder.bitcast(self.builder.shl(biased, self._int(fraction)), self.value.type))

    def exponent(self, lowest_bits: int) -> Value:
        """The k with x / 2^k in [s, 2 s), for a positive normal x; `lowest_bits` are the bits of s."""
        _, fraction, _ = self._layout()
        above = self.builder.sub(self._bits(), self._int(lowest_bits))
        return self._wrap(self.builder.sitofp(self.builder.ashr(above, self._int(fraction)), self.value.type))

    def scaled_down(self, k: Value) -> Value:
        """x / 2^k for a whole number k, where x and the result are positive normal numbers."""
        _, fraction, _ = self._layout()
        shift = self.builder.shl(k._whole(), self._int(fraction))
        return self._wrap(self.builder.bitcast(self.builder.sub(self._bits(), shift), self.value.type))

    def call(self, name: str) -> Value:
        """Call a libm function of one argument; scalars only."""
        module, kind = self.builder.module, ir.FunctionType(self.value.type, [self.value.type])
        function = module.globals.get(name) or ir.Function(module, kind, name)
        return self._wrap(self.builder.call(function, [self.value]))

    def _wrap(self, value: ir.Value) -> Value:
        return Value(self.builder, value)

    def _operand(self, other: Value | float) -> ir.Value:
        return other.value if isinstance(other, Value) else self.constant(other).value

    def _layout(self) -> tuple[int, int, int]:
        kind = self.value.type
        return _SIZES[str(kind.element if isinstance(kind, ir.VectorType) else kind)]

    def _int_type(self) -> ir.Type:
        kind, integer = self.value.type, ir.IntType(self._layout()[0])
        return ir.VectorType(integer, kind.count) if isinstance(kind, ir.VectorType) else integer

    def _int(self, number: int) -> ir.Constant:
        kind = self._int_type()
        return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)

    def _whole(self) -> ir.Value:
        return self.builder.fptosi(self.value, self._int_type())

    def _bits(self) -> ir.Value:
        return self.builder.bitcast(self.value, self._int_type())

    def _intrinsic(self, name: str, *others: Value) -> Value:
        kind = self.value.type
        count = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        module, full = self.builder.module, f"llvm.{name}.{count}f{self._layout()[0]}"
        function = module.globals.get(full) or ir.Function(
            module, ir.FunctionType(kind, [kind] * (1 + len(others))), full
        )
        return self._wrap(self.builder.call(function, [self.value, *(other.value for other in others)]))
