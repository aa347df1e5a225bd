"""Sums in fixed point beside numpy's whole numbers and float64: values, order, exponents, broken numbers."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.kernels.fixed_point import FALL, HEADROOM, round_into, round_lane
from hpctrain.nn.fixed_point import FixedPoint, Lanes
from hpctrain.nn.flat import CHECKPOINT, LOSS, ROWS, STOP, TAIL, WEIGHT, Layout

LAYOUT = Layout([("weight", (40, 50)), ("bias", (50,)), ("unused", (3,))])
STATE = Layout([("mean", (7,))])
LANES, NAMES = 6, ("weight", "bias", "unused", "mean")
SIZES = {"weight": 1.0, "bias": 1e-4, "mean": 3e5}  # of the numbers in a tensor


def places(name: str) -> slice:
    layout, first = (STATE, LAYOUT.size) if name in {slot.name for slot in STATE} else (LAYOUT, 0)
    slot = layout[name]
    return slice(first + slot.offset, first + slot.stop)


def lane_sums(seed: int = 0, scale: float = 1.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = np.zeros((LANES, LAYOUT.size + STATE.size), np.float32)
    for name, size in SIZES.items():
        part = values[:, places(name)]
        part[:] = random.normal(size=part.shape) * size * scale
    return values


def fixed_point() -> FixedPoint:
    buffer = np.zeros(LAYOUT.size + STATE.size + FixedPoint.slots(LAYOUT, STATE, LANES) + TAIL, np.float32)
    for name in NAMES:
        buffer[places(name)] = np.nan  # what was there before does not matter, but for the padding, which is zero
    buffer[LAYOUT.size + STATE.size :] = np.nan
    return FixedPoint(LAYOUT, STATE, Lanes(LANES, 10), buffer)


def give(fixed: FixedPoint, values: np.ndarray, lanes: list[int]) -> np.ndarray:
    """Give the sums of some lanes, in this order, as one rank does; return the buffer, as it would be sent."""
    fixed.begin()
    if not lanes:
        fixed.sums[:] = 0
    for at, lane in enumerate(lanes):
        for number, (lo, hi) in enumerate(zip(fixed.starts, fixed.stops, strict=True)):
            scale, largest = fixed.scales[number : number + 1], fixed.largest[lane, number : number + 1]
            round_lane(values[lane, lo:hi], scale, fixed.sums[lo:hi], largest, float(at > 0), 0)
        fixed.losses[lane] = 1.5 + lane
        fixed.note(lane, 0.25 * lane)
    tail = fixed.numbers.view(np.float32)[-TAIL:]
    tail[:] = 0
    tail[ROWS] = 10 * len(lanes)
    fixed.close()
    return fixed.numbers


def settled(values: np.ndarray, dealt: list[list[int]], exponents: np.ndarray | None = None) -> list[FixedPoint]:
    """Go through a step of several ranks with these lanes each, until the exponents fit; return what each has."""
    ranks = [fixed_point() for _ in dealt]
    for fixed in ranks:
        fixed.load(0 if exponents is None else exponents)
    for _ in range(3):
        total = np.sum([give(fixed, values, lanes) for fixed, lanes in zip(ranks, dealt, strict=True)], axis=0)
        for fixed in ranks:
            fixed.numbers[:] = total
        if all([fixed.settle() for fixed in ranks]):
            return ranks
    raise AssertionError("the exponents are found in two steps at most")


def found(fixed: FixedPoint, name: str) -> np.ndarray:
    return fixed.numbers.view(np.float32)[places(name)]


def bits(fixed: FixedPoint) -> bytes:
    return fixed.sums.tobytes() + fixed.exponents.tobytes() + repr(fixed.totals).encode()


def test_numbers_are_rounded_and_added_as_whole_numbers() -> None:
    random = np.random.default_rng(1)
    values = (random.normal(size=5000) * 1000).astype(np.float32)
    scale, out, largest = np.full(1, 2.0**7, np.float32), np.full(5000, 7, np.int32), np.zeros(1, np.int32)
    round_into(values, scale, True, out, largest)
    np.testing.assert_array_equal(out, np.rint(values.astype("f8") * 2**7))
    assert largest.view(np.float32)[0] == abs(values).max()
    round_into(-values / 2, scale, False, out, largest)
    np.testing.assert_array_equal(out, np.rint(values.astype("f8") * 2**7) + np.rint(-values.astype("f8") * 2**6))
    assert largest.view(np.float32)[0] == abs(values).max()


def test_sums_are_those_of_float64_within_a_unit_for_each_lane() -> None:
    values = lane_sums()
    (fixed,) = settled(values, [list(range(LANES))])
    for name in SIZES:
        exact = values[:, places(name)].astype("f8").sum(0)
        # 30 bits, three of them for six lanes and two of headroom, below the next power of two.
        unit = 2.0 ** (np.ceil(np.log2(abs(values[:, places(name)]).max())) - 25)
        bound = LANES / 2 * unit + np.spacing(abs(exact).astype("f4"))
        assert np.all(abs(found(fixed, name) - exact) <= bound), name
    assert not found(fixed, "unused").any()
    assert fixed.totals == (sum(1.5 + lane for lane in range(LANES)), sum(0.25 * lane for lane in range(LANES)), 60)
    tail = fixed.numbers.view(np.float32)[-TAIL:]
    assert (tail[WEIGHT], tail[LOSS], tail[ROWS], tail[STOP], tail[CHECKPOINT]) == (3.75, 24.0, 60.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "dealt",
    [[[0, 1, 2], [3, 4, 5]], [[0, 1], [2], [3], [4], [5], []], [[5, 4, 3, 2, 1, 0]], [[], [3, 1], [0, 2, 5, 4]]],
    ids=["two ranks", "a rank without lanes", "backwards", "in disorder"],
)
def test_any_dealing_out_of_the_lanes_gives_the_same_bits(dealt: list[list[int]]) -> None:
    values = lane_sums()
    expected = bits(settled(values, [list(range(LANES))])[0])
    assert {bits(fixed) for fixed in settled(values, dealt)} == {expected}


def test_as_many_lanes_as_there_can_be_do_not_run_over() -> None:
    values = np.zeros((LANES, LAYOUT.size + STATE.size), np.float32)
    values[:, places("weight")] = np.nextafter(np.float32(8), np.float32(0))
    exponents = np.full(len(NAMES), 3, np.int32)  # no headroom: numbers up to 2^3
    (fixed,) = settled(values, [list(range(LANES))], exponents)
    np.testing.assert_allclose(found(fixed, "weight"), 8 * LANES, rtol=1e-6)


@pytest.mark.parametrize("factor", [2.0**40, 2.0**12, 2.0**-9, 2.0**-60])
def test_sums_that_do_not_fit_are_made_once_more(factor: float) -> None:
    fixed = settled(lane_sums(), [list(range(LANES))])[0]
    values = lane_sums(1, factor)
    give(fixed, values, list(range(LANES)))
    assert not fixed.settle()
    give(fixed, values, list(range(LANES)))
    assert fixed.settle()
    exact = values.astype("f8").sum(0)[places("weight")]
    np.testing.assert_allclose(found(fixed, "weight"), exact, atol=2e-7 * abs(exact).max())


def test_exponents_follow_the_largest_number_up_at_once_and_down_slowly() -> None:
    fixed = settled(lane_sums(), [list(range(LANES))])[0]
    weight = NAMES.index("weight")
    before = int(fixed.exponents[weight])
    assert before == np.frexp(abs(lane_sums()[:, places("weight")]).max())[1] + HEADROOM
    give(fixed, lane_sums(0, 4.0), [0, 1, 2, 3, 4, 5])
    assert fixed.settle(), "within the headroom"
    assert fixed.exponents[weight] == before + 2
    for step in range(3):
        give(fixed, lane_sums(0, 2.0**-3), [0, 1, 2, 3, 4, 5])
        assert fixed.settle()
        assert fixed.exponents[weight] == before + 2 - FALL * (step + 1)
    assert fixed.exponents[NAMES.index("unused")] == 0, "nothing is known of it"


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_broken_in_one_lane_is_broken_in_the_sum(broken: float) -> None:
    values = lane_sums()
    values[3, places("bias")][7] = broken
    for fixed in settled(values, [[0, 1, 2], [3, 4, 5]]):
        assert np.isnan(found(fixed, "bias")).all()
        assert np.isfinite(found(fixed, "weight")).all()


def test_numbers_too_small_to_be_told_apart_are_zero_and_ask_for_nothing() -> None:
    (fixed,) = settled(lane_sums(0, 1e-36), [list(range(LANES))])
    assert np.isfinite(found(fixed, "weight")).all()
    give(fixed, lane_sums(0, 1e-36), [0])
    assert fixed.settle()
