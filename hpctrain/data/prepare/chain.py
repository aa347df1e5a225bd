"""`Chain`: the steps of a job's list, bound to the shape of an example, one after another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpctrain.data.prepare.base import Fitted, Line, Operands, Step
from hpctrain.data.prepare.elements import Elements, find_columns
from hpctrain.data.prepare.one_hot import OneHot
from hpctrain.errors import UserError
from hpctrain.kernels.affine import affine_rows

_MOST_STATISTICS = 1 << 20  # beyond this a rank would need gigabytes for them
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_TILE_BYTES = 512 << 10  # of float64: rows that go through all steps while they are in the processor's cache


class BoundStep:
    """A step, the numbers of an example that it is about, and what it has learned (None: nothing yet)."""

    def __init__(self, step: Step, elements: Elements, where: str) -> None:
        self.step, self.elements, self.where = step, elements, where
        self._operands: Operands | None = None
        self.fitted: Fitted | None = None
        if isinstance(step, OneHot):
            sizes = step.sizes(len(elements.columns))
            self.fit(None if sizes is None else {"size": sizes})
        elif not step.learns and not step.stored:
            self.fit({})

    def fit(self, fitted: Fitted | None) -> None:
        """Keep what the step has learned, arrays that can be spread over its numbers."""
        if fitted is not None:
            shape = (self.elements.count,)
            fitted = {name: np.broadcast_to(np.asarray(a, np.float64), shape).copy() for name, a in fitted.items()}
        self.fitted, self._operands = fitted, None

    @property
    def title(self) -> str:
        """The step's key and name, for errors: "data.prepare.0 (log)"."""
        return f"{self.where} ({self.step.name})"

    @property
    def operands(self) -> Operands:
        """What the step is given beside the numbers; made once."""
        if self._operands is None:
            if self.fitted is None:
                raise RuntimeError(f"{self.where} has learned nothing yet")
            self._operands = self.step.operands(self.elements, self.fitted)
        return self._operands

    def apply(self, rows: np.ndarray) -> None:
        """Prepare float64 rows (n, size) in place."""
        self.step.apply(rows.reshape(-1, self.elements.width), self.operands)

    def invert(self, rows: np.ndarray) -> None:
        """Turn prepared float64 rows (n, size) back in place."""
        self.step.invert(rows.reshape(-1, self.elements.width), self.operands)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_operands": None}  # made again from what is learned


class Chain:
    """What is done to examples of `shape` (before preparation), in order.

    where  the key of the list, for errors: "data.prepare"
    names  of the columns (places on the last axis), where they have any

    Columns that become one-hot are spread out behind all steps, and no step after `one_hot` touches them: by default it
    takes all others, and where it names them it is a `UserError`.
    """

    def __init__(
        self, steps: Sequence[Step], shape: tuple[int, ...], where: str, names: Sequence[str] | None = None
    ) -> None:
        self.shape, self.where = shape, where
        self.steps: list[BoundStep] = []
        taken: dict[int, str] = {}  # one-hot column -> the key of its step
        for number, step in enumerate(steps):
            key = f"{where}.{number}"
            columns = find_columns(step.columns, shape[-1], names, f"{key}.columns ({step.name})")
            if step.columns is None:
                columns = tuple(column for column in columns if column not in taken)
            elif twice := [column for column in columns if column in taken]:
                raise UserError(
                    f"{key} ({step.name}) works on column {twice[0]}, which {taken[twice[0]]} made one-hot",
                    hint="put it in front of the step one_hot, or leave the column out",
                )
            if not columns:
                raise UserError(f"{key} ({step.name}) has no columns left: all are one-hot")
            bound = BoundStep(step, Elements(shape, columns, step.sharing), key)
            if step.learns and bound.elements.count > _MOST_STATISTICS:
                raise UserError(
                    f"{bound.title} would take statistics of each number of an example",
                    found=f"{bound.elements.count:,} of them",
                    allowed=f"{_MOST_STATISTICS:,} or fewer",
                    hint='set axis = "channel" (one for each place on the last axis) or axis = "all"',
                )
            if isinstance(step, OneHot):
                self._check_one_hot(bound)
                taken |= dict.fromkeys(columns, key)
            if bound.fitted is not None:
                _ = bound.operands  # finds options that do not fit
            self.steps.append(bound)

    def _check_one_hot(self, bound: BoundStep) -> None:
        if bound.fitted is None:
            for before in self.steps:
                if before.fitted is None and set(before.elements.columns) & set(bound.elements.columns):
                    raise UserError(
                        f"{bound.where} (one_hot) finds its size in numbers that {before.where} ({before.step.name}) "
                        "makes of what it learns",
                        hint=f"give {bound.where} a size, or leave its columns out of {before.where}",
                    )

    @property
    def size(self) -> int:
        """Numbers of an example before preparation."""
        return math.prod(self.shape)

    @property
    def kept_bytes(self) -> int:
        """Memory that what is learned, and what is made of it, takes."""
        return sum(8 * 2 * (bound.elements.count + bound.elements.width) for bound in self.steps)

    @property
    def passing_bytes(self) -> int:
        """Memory that `apply` takes for a while: a tile, and what a step makes of it."""
        return 2 * max(_TILE_BYTES, 8 * self._unit)

    @property
    def _unit(self) -> int:
        """Numbers that can go through the steps apart from others: a line, where all have equal ones, or an example."""
        widths = {bound.elements.width for bound in self.steps}
        return widths.pop() if len(widths) == 1 else self.size

    @property
    def is_fitted(self) -> bool:
        """Whether every step has learned what it must."""
        return all(bound.fitted is not None for bound in self.steps)

    @property
    def has_shape(self) -> bool:
        """Whether it is known how many columns every one-hot column becomes."""
        return all(bound.fitted is not None for bound in self.one_hot())

    def one_hot(self) -> Iterator[BoundStep]:
        """Yield the one-hot steps."""
        yield from (bound for bound in self.steps if isinstance(bound.step, OneHot))

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of one prepared example."""
        return (*self.shape[:-1], self.shape[-1] + sum(int(size) - 1 for _, size in self._spread_columns()))

    def _spread_columns(self) -> list[tuple[int, int]]:
        """Return (column, size) of all one-hot columns, in the order of the columns."""
        pairs = (
            zip(bound.elements.columns, bound.fitted["size"].astype(int).tolist(), strict=True)
            for bound in self.one_hot()
        )
        return sorted(pair for several in pairs for pair in several)

    def apply(self, raw: np.ndarray, out: np.ndarray) -> None:
        """Prepare examples: `raw` (n, *shape), real numbers of any type, into `out`, float32 of (n, *out_shape).

        In float64 up to the last cast.  What has no image becomes NaN or infinite: `explain` says why.
        """
        if len(raw) == 0:
            return
        raw = raw.reshape(-1, self._unit)
        out = out.reshape(len(raw), -1)
        if len(self.steps) == 1 and self._ends_in_a_line and raw.dtype in _FLOATS:
            self._cast(np.ascontiguousarray(raw), out)
            return
        rows = max(1, _TILE_BYTES // (8 * self._unit))
        tile = np.empty((min(rows, len(raw)), self._unit))
        for lo in range(0, len(raw), rows):
            piece = tile[: min(rows, len(raw) - lo)]
            piece[...] = raw[lo : lo + rows]
            if self._ends_in_a_line:
                self.run(piece, self.steps[:-1])
                self._cast(piece, out[lo : lo + rows])
            else:
                self.run(piece, self.steps)
                self._write(piece, out[lo : lo + rows])

    @property
    def _ends_in_a_line(self) -> bool:
        """Whether the last step can be taken together with the cast to float32."""
        return isinstance(self.steps[-1].step, Line) and next(self.one_hot(), None) is None

    def _cast(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Take the last step from rows of whole lines into `out`, float32 of the same shape."""
        width = self.steps[-1].elements.width
        affine_rows(rows.reshape(-1, width), *self.steps[-1].operands, out.reshape(-1, width))

    def warm_up(self) -> None:
        """Compile, or load, the kernels of `apply`."""
        for kind in _FLOATS if self._ends_in_a_line else ():
            zero = np.zeros(1)
            affine_rows(np.zeros((1, 1), kind), zero, zero, zero, np.zeros((1, 1), np.float32))

    def run(self, rows: np.ndarray, steps: Sequence[BoundStep]) -> None:
        """Let some of the steps work in place on float64 rows of whole lines, such as examples; nothing is spread."""
        with np.errstate(all="ignore"):
            for bound in steps:
                bound.apply(rows)

    def _write(self, rows: np.ndarray, out: np.ndarray) -> None:
        spread = self._spread_columns()
        if not spread:
            with np.errstate(over="ignore"):  # what overflows becomes infinite, and is found then
                out[...] = rows
            return
        rows, out = rows.reshape(-1, self.shape[-1]), out.reshape(-1, self.out_shape[-1])
        lines = np.arange(len(rows))
        before = at = 0  # columns of rows and of out that are done
        for column, size in [*spread, (self.shape[-1], 0)]:
            plain = column - before
            out[:, at : at + plain] = rows[:, before:column]
            at += plain
            if size:
                kinds = rows[:, column]
                bad = np.isnan(kinds)
                out[:, at : at + size] = np.where(bad, np.nan, 0.0)[:, None]
                out[lines[~bad], at + kinds[~bad].astype(np.intp)] = 1
            before, at = column + 1, at + size

    def invert(self, prepared: np.ndarray) -> np.ndarray:
        """Return prepared examples (n, ...) of `size` numbers each in their own units: float64, in the same shape."""
        rows = np.array(prepared, np.float64, order="C").reshape(len(prepared), self.size)
        with np.errstate(all="ignore"):
            for bound in reversed(self.steps):
                bound.invert(rows)
        return rows.reshape(prepared.shape)

    def explain(self, raw: np.ndarray) -> str | None:
        """Return which step makes what number of one example (*shape) infinite or NaN; None where none does.

        Looks no further than the first step that has not learned yet.
        """
        row = np.array(raw, np.float64, order="C").reshape(1, self.size)
        for bound in itertools.takewhile(lambda bound: bound.fitted is not None, self.steps):
            before = row.copy()
            self.run(row, [bound])
            broken = np.flatnonzero(np.isfinite(before) & ~np.isfinite(row))
            if broken.size:
                number = before[0, broken[0]]
                column = f"column {broken[0] % self.shape[-1]}"
                allowed = ""
                if isinstance(bound.step, OneHot):
                    place = bound.elements.columns.index(broken[0] % self.shape[-1])
                    allowed = f", which knows 0 to {int(bound.fitted['size'][place]) - 1}"
                return f"{number:.10g} in {column}, of which {bound.where} ({bound.step.name}{allowed}) makes no number"
        return None
