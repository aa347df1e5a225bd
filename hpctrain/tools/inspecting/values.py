"""What the values of datasets are like: range, mean, deviation, what is missing, classes, a histogram.

Everything is read where that is quick; of more, blocks that are evenly spread, in an order in which those read so far
are always spread, so that time and memory are bounded.  Statistics are float64; blocks are merged by Chan's formula.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hpctrain.data.files import open_file
from hpctrain.errors import UserError
from hpctrain.tools.inspecting.contents import Entry, kind_of, spread

BUDGET_BYTES = 64 << 20  # of one dataset that are read, where not all of it is wanted
_BLOCK_BYTES = 4 << 20
_LARGEST_CHUNK = 256 << 20  # a larger one would have to be decoded whole
MOST_CLASSES = 64
_KEPT = 1 << 18  # numbers that the histogram is made of, at most; texts that are counted
_BINS = 16
_ALL_COLUMNS = 4096


@dataclass(frozen=True)
class Summary:
    """What values are like; numbers as they mean: with scale_factor and add_offset, without what _FillValue marks.

    read      values that were looked at, and `total` that there are
    missing   of those read, NaN or _FillValue; `infinite`: plus or minus infinity; the rest is counted in what follows
    deviation the population's (divided by the count)
    histogram counts in `_BINS` bins of equal width from the smallest to the largest
    classes   value -> count, where all are whole and few are different; of texts the most frequent
    distinct  different texts, None for numbers
    whole     whether all values are whole numbers
    problem   why nothing could be read
    """

    read: int = 0
    total: int = 0
    missing: int = 0
    infinite: int = 0
    minimum: float = math.nan
    maximum: float = math.nan
    mean: float = math.nan
    deviation: float = math.nan
    histogram: tuple[int, ...] = ()
    classes: dict[float | str, int] | None = None
    distinct: int | None = None
    whole: bool = False
    problem: str | None = None

    @property
    def sampled(self) -> bool:
        """Whether some of the values were left out."""
        return self.read < self.total


@dataclass
class Limits:
    """How much is read: bytes of each dataset (None: all), and a time on the clock (None: any)."""

    budget_bytes: int | None = BUDGET_BYTES
    end_s: float | None = None
    progress: Callable[[int], None] | None = None

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.end_s is not None and time.monotonic() > self.end_s


def summarise(entry: Entry, limits: Limits, by_column: bool = False) -> dict[str, Summary]:
    """Return the summary of a dataset, by "", and of the fields of records by ".name".

    by_column  also one for each column of (rows, columns), by "[:, 0]" and so on
    """
    total = sum(math.prod(shape) for shape in entry.shapes if shape is not None)
    total = total * entry.count // max(len(entry.places), 1)
    if entry.kind == "other" or not entry.readable:
        missing = [str(step) for step in entry.filters if not step.installed]
        return {"": Summary(total=total, problem=entry.problem or ", ".join(missing) or "no numbers")}
    if entry.kind == "text":
        counter = _TextCounter()
        problem = _run(entry, limits, counter.add)
        return {"": counter.summary(total, problem)}
    if entry.kind == "record":
        parts: dict[str, _Accumulator | _TextCounter] = {}
        for name in entry.dtype.names:
            if (kind := kind_of(entry.dtype[name].base)) in ("number", "text"):
                parts[name] = _Accumulator(1) if kind == "number" else _TextCounter()
        problem = _run(entry, limits, lambda block: [parts[name].add(block[name].reshape(-1, 1)) for name in parts])
        return {f".{name}": part.summary(total, problem) for name, part in parts.items()} or {"": Summary(total=total)}
    width = entry.shape[1] if len(entry.shape) == 2 and entry.shape[1] <= _ALL_COLUMNS else 1
    table = _Accumulator(width, entry.packed)
    problem = _run(entry, limits, lambda block: table.add(block.reshape(-1, width)))
    found = {"": table.summary(total, problem)}
    if by_column and width > 1:
        found |= {f"[:, {i}]": table.summary(total // width, problem, i) for i in range(width)}
    return found


def sample(entry: Entry, rows: int, field: str | None = None) -> np.ndarray:
    """Return at most so many rows of a dataset of numbers, evenly spread over places and rows, as float64.

    field  of a dataset of records: what is taken of it

    There are fewer where they are large: all together take a few megabytes, but for one row.  Raises `UserError` where
    the file is damaged.
    """
    most = max(1, min(rows, _BLOCK_BYTES // (8 * max(math.prod(entry.shape[1:]), 1))))
    places = [index for index in spread(len(entry.places), most) if entry.shapes[index]]
    parts = []
    for index in places:
        path, name = entry.places[index]
        with open_file(path) as file:
            dataset = file[name] if field is None else file[name].fields(field)
            count = len(file[name])
            wanted = min(count, max(1, most // len(places)))
            # A few runs of neighbours: rows one by one would decode a chunk each.
            length = wanted if wanted == count else max(1, wanted // 4)
            starts = [0] if wanted == count else spread(count - length + 1, min(4, wanted))
            try:
                parts += [np.asarray(dataset[lo : lo + length], np.float64) for lo in starts]
            except OSError as error:
                raise UserError(
                    f"HDF5 cannot read {name!r} in {path}",
                    found=str(error).splitlines()[0],
                    hint="the file may be damaged; h5dump shows how far it can be read",
                ) from None
    return np.concatenate(parts) if parts else np.empty((0, *entry.shape[1:]))


def _run(entry: Entry, limits: Limits, take: Callable[[np.ndarray], object]) -> str | None:
    """Hand blocks of values to `take`; return why it ended early where something could not be read."""
    try:
        for block in _blocks(entry, limits):
            with np.errstate(over="ignore", invalid="ignore"):
                take(block)
            if limits.progress:
                limits.progress(block.nbytes)
    except (OSError, RuntimeError) as error:
        return f"HDF5 cannot read it: {str(error).splitlines()[0]}"
    return None


def _blocks(entry: Entry, limits: Limits) -> Iterator[np.ndarray]:
    """Yield blocks until all is read or a limit is reached."""
    pieces = _Pieces(entry)
    budget, read, open_path, file = limits.budget_bytes, 0, None, None
    whole = budget is None or entry.raw <= budget
    try:
        for index in range(len(pieces)) if whole else _scattered(len(pieces)):
            path, name, where, size = pieces[index]
            if read and (limits.is_over() or (not whole and read + size > budget)):
                return
            if path != open_path:
                if file is not None:
                    file.close()
                file, open_path = open_file(path, max(_BLOCK_BYTES, pieces.chunk_bytes)), path
            block = file[name][where]
            yield block if where else np.asarray(block).reshape(1)
            read += size
    finally:
        if file is not None:
            file.close()


class _Pieces:
    """The pieces of a few megabytes that a dataset is read in, numbered: file, path, slices and bytes of each.

    They end where chunks end.  There is no list of them: a dataset may have millions.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        chunks = entry.chunks or ()
        self.chunk_bytes = math.prod(chunks) * entry.dtype.itemsize if chunks else 0
        if self.chunk_bytes > _LARGEST_CHUNK:
            raise OSError("its chunks are too large to be decoded for a look")
        self._starts = [0]
        for shape in entry.shapes:
            count = 0 if shape is None or 0 in shape else math.prod(self._counts(shape))
            self._starts.append(self._starts[-1] + count)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> tuple[str, str, tuple[slice, ...], int]:
        place = bisect_right(self._starts, index) - 1
        shape = self._entry.shapes[place]
        steps = self._steps(shape)
        numbers = np.unravel_index(index - self._starts[place], self._counts(shape)) if shape else ()
        where = tuple(
            slice(int(number) * step, min((int(number) + 1) * step, extent))
            for number, step, extent in zip(numbers, steps, shape, strict=True)
        )
        size = math.prod(part.stop - part.start for part in where) * self._entry.dtype.itemsize
        return (*self._entry.places[place], where, size)

    def _counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of pieces along each axis."""
        return tuple(-(-extent // step) for extent, step in zip(shape, self._steps(shape), strict=True))

    def _steps(self, shape: tuple[int, ...]) -> list[int]:
        """Return the length of a piece along each axis: the first ones are cut, as far as it takes."""
        steps, most = list(shape), _BLOCK_BYTES
        for axis, extent in enumerate(shape):
            rest = self._entry.dtype.itemsize * math.prod(shape[axis + 1 :])
            chunk = self._entry.chunks[axis] if self._entry.chunks else 1
            steps[axis] = min(max(most // max(rest, 1) // chunk, 1) * chunk, extent)
            if rest <= most:
                break
            most //= steps[axis]
        return steps


def _scattered(count: int) -> Iterator[int]:
    """Yield the numbers below `count` in an order whose every beginning is evenly spread: bits reversed."""
    bits = max(count - 1, 1).bit_length()
    for number in range(1 << bits):
        index = int(f"{number:0{bits}b}"[::-1], 2)
        if index < count:
            yield index


@dataclass
class _Accumulator:
    """Statistics of the columns of blocks (rows, columns), merged block by block."""

    columns: int
    packed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        zeros = np.zeros(self.columns)
        self.read = 0  # of one column
        self.count, self.missing, self.infinite = zeros.copy(), zeros.copy(), zeros.copy()
        self.mean, self.squares = zeros.copy(), zeros.copy()
        self.low, self.high = zeros + np.inf, zeros - np.inf
        self.whole = True
        self.classes: list[dict[float, int]] | None = [{} for _ in range(self.columns)]
        self.kept: list[np.ndarray] = []

    def add(self, block: np.ndarray) -> None:
        """Take a block in."""
        stored = block
        values = stored.astype(np.float64)
        missing = np.isnan(values)
        for name in ("_FillValue", "missing_value"):
            if name in self.packed:
                missing |= values == self.packed[name]
        values = values * self.packed.get("scale_factor", 1.0) + self.packed.get("add_offset", 0.0)
        infinite = ~missing & np.isinf(values)
        good = ~(missing | infinite)
        self.read += len(values)
        self.missing += missing.sum(axis=0)
        self.infinite += infinite.sum(axis=0)
        everything = bool(good.all())
        self._merge(values if everything else np.where(good, values, 0.0), good, everything)
        self.low = np.minimum(self.low, values.min(axis=0, where=good, initial=np.inf))
        self.high = np.maximum(self.high, values.max(axis=0, where=good, initial=-np.inf))
        self._classify(values, good)
        step = max(1, values.size // (_KEPT // 16))
        self.kept.append(np.where(good, values, np.nan)[:: max(1, step // self.columns)])
        if sum(part.size for part in self.kept) > 2 * _KEPT:
            self.kept = [np.concatenate(self.kept)[::2]]

    def _merge(self, values: np.ndarray, good: np.ndarray, everything: bool) -> None:
        count = good.sum(axis=0).astype(np.float64)
        some = np.maximum(count, 1)
        mean = values.sum(axis=0) / some
        apart = values - mean
        squares = np.einsum("ij,ij->j", apart, apart if everything else apart * good)
        self.mean, self.squares, self.count = _chan((self.mean, self.squares, self.count), (mean, squares, count))

    def _classify(self, values: np.ndarray, good: np.ndarray) -> None:
        """Count the values as long as all are whole and few are different."""
        if not self.whole:
            return
        # A first look at a few spares most of the work with data that has no classes.
        head = values[:256][good[:256]]
        self.whole = bool(np.all(head == np.floor(head)) and np.all(values[good] == np.floor(values[good])))
        if not self.whole or self.classes is None:
            self.classes = None
            return
        for column, counts in enumerate(self.classes):
            if len(counts) > MOST_CLASSES:
                continue
            found, times = np.unique(values[:, column][good[:, column]], return_counts=True)
            for value, count in zip(found[: MOST_CLASSES + 1].tolist(), times.tolist(), strict=False):
                counts[value] = counts.get(value, 0) + count
        if all(len(counts) > MOST_CLASSES for counts in self.classes):
            self.classes = None

    def summary(self, total: int, problem: str | None, column: int | None = None) -> Summary:
        """Return the summary of one column, or of all together."""
        chosen = slice(None) if column is None else slice(column, column + 1)
        width = self.columns if column is None else 1
        mean, squares, count = np.float64(0), np.float64(0), np.float64(0)
        for part in zip(self.mean[chosen], self.squares[chosen], self.count[chosen], strict=True):
            mean, squares, count = _chan((mean, squares, count), part)
        low, high = float(self.low[chosen].min()), float(self.high[chosen].max())
        read = self.read * width
        missing, infinite = int(self.missing[chosen].sum()), int(self.infinite[chosen].sum())
        if count == 0:
            return Summary(read, max(total, read), missing, infinite, problem=problem)
        kept = np.concatenate(self.kept)[:, chosen].reshape(-1)
        histogram = np.histogram(kept[~np.isnan(kept)], _BINS, (low, high))[0] if low < high else np.array([count])
        return Summary(
            read,
            max(total, read),
            missing,
            infinite,
            low,
            high,
            float(mean),
            float(np.sqrt(squares / count)),
            tuple(int(number) for number in histogram),
            self._classes(chosen),
            None,
            self.whole,
            problem,
        )

    def _classes(self, chosen: slice) -> dict[float | str, int] | None:
        if not self.whole or self.classes is None:
            return None
        together: dict[float | str, int] = {}
        for counts in self.classes[chosen]:
            for value, count in counts.items():
                together[value] = together.get(value, 0) + count
        return dict(sorted(together.items())) if 0 < len(together) <= MOST_CLASSES else None


def _chan(first: tuple, second: tuple) -> tuple:
    """Merge two sets of (mean, sum of squares about it, count) (Chan, Golub & LeVeque 1979)."""
    mean_a, squares_a, count_a = first
    mean_b, squares_b, count_b = second
    count = count_a + count_b
    some = np.maximum(count, 1)
    apart = mean_b - mean_a
    return mean_a + apart * count_b / some, squares_a + squares_b + apart**2 * count_a * count_b / some, count


class _TextCounter:
    """Counts the different texts of blocks."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._read = 0

    def add(self, block: np.ndarray) -> None:
        """Take a block in."""
        counts = self._counts
        self._read += block.size
        for text in block.reshape(-1).tolist():
            word = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            if word in counts or len(counts) < _KEPT:
                counts[word] = counts.get(word, 0) + 1

    def summary(self, total: int, problem: str | None) -> Summary:
        """Return the most frequent texts, and how many different ones there are."""
        frequent = dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLASSES])
        distinct = len(self._counts)
        return Summary(self._read, max(total, self._read), classes=frequent or None, distinct=distinct, problem=problem)
