"""Every registered compression on one rank: what arrives, what is kept, and that nothing is lost between the two.

A newly registered one is tested with its default options; `OPTIONS` adds further ones worth testing.  What several
ranks make of it is in `tests/mpi/test_compressed.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain.compress import COMPRESSIONS
from hpctrain.compress.base import Compression, Source, TwoShot
from hpctrain.compress.pieces import pieces_within
from hpctrain.memory import aligned_zeros
from hpctrain.nn.flat import Layout
from hpctrain.options import part_from, spec_of

OPTIONS: dict[str, list[dict]] = {
    "int8": [{"stochastic": True, "block": 64}, {"block": 1024}],
    "int4": [{"stochastic": True}],
    "one_bit": [{"block": 32}],
    "top_k": [{"ratio": 0.2}],
    "random_k": [{"ratio": 0.5}],
    "power_sgd": [{"rank": 2}],
}
CASES = [(name, options) for name in COMPRESSIONS for options in [{}, *OPTIONS.get(name, [])]]
# How far from a number what arrives may be, from the format: part of the number, and of the largest in its block.
BOUNDS = {"float16": (2**-11, 2**-28), "bfloat16": (2**-8, 0), "int8": (0, 1 / 254), "int4": (0, 1 / 14)}
UNBIASED = {"int8": {"stochastic": True}, "int4": {"stochastic": True}, "random_k": {}}

# Tensors of odd sizes: blocks and vectors are cut short at their ends.
LAYOUT = Layout([("a", (37, 41)), ("b", (41,)), ("c", (5, 7, 100)), ("d", (2, 3)), ("e", (64, 32))])
ENCODED = ("a", "c", "e")

every_compression = pytest.mark.parametrize(
    "compression",
    [COMPRESSIONS.get(name)(**options) for name, options in CASES],
    ids=[f"{name}-{'-'.join(options) or 'default'}" for name, options in CASES],
)
every_feedback = pytest.mark.parametrize("feedback", [True, False], ids=["feedback", "plain"])


class Wire:
    """Sends gradients to itself, as one rank would."""

    def __init__(self, compression: Compression) -> None:
        self.tensors = [slot for slot in LAYOUT if compression.encodes(slot)]
        self.compression = compression
        self.made = None
        if isinstance(compression, TwoShot):
            self.coder = compression.coder(pieces_within(self.tensors, 0, LAYOUT.size, compression.unit))
            self.views = self.coder.views(aligned_zeros(self.coder.nbytes, np.uint8))
        else:
            self.made = compression.summed(self.tensors, 0, LAYOUT.size, 3, aligned_zeros)

    def send(self, values: np.ndarray, residual: np.ndarray | None, factor: float = 1.0, key: int = 1) -> np.ndarray:
        """Return what arrives; the residual changes."""
        source, out = Source(values.copy(), residual, factor, True, key), np.full(LAYOUT.size, 7, np.float32)
        if self.made is None:
            self.coder.encode(source, self.views)
            self.coder.decode(self.views, out, False)
            more = np.full(LAYOUT.size, 7, np.float32)
            self.coder.decode(self.views, more, True)
            if np.isfinite(out).all():
                meant = np.where(self.inside(), out, 0)
                np.testing.assert_allclose(more - 7, meant, atol=2e-6 * max(1, abs(out).max()))
        else:
            for number in range(len(self.made.payloads)):
                self.made.fill(number, source)
            self.made.finish(source, out)
        np.testing.assert_array_equal(source.values, values)
        np.testing.assert_array_equal(out[~self.inside()], 7)
        return np.where(self.inside(), out, 0)

    def inside(self) -> np.ndarray:
        inside = np.zeros(LAYOUT.size, bool)
        for slot in self.tensors:
            inside[slot.offset : slot.stop] = True
        return inside


def gradients(seed: int) -> np.ndarray:
    """Gradients of very different sizes, some of them zero."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(LAYOUT.size) * np.exp(random.uniform(-6, 2, LAYOUT.size))
    values[LAYOUT["e"].offset : LAYOUT["e"].offset + 300] = 0
    return values.astype(np.float32)


@every_compression
def test_the_rule_of_what_is_encoded(compression: Compression) -> None:
    assert [slot.name for slot in LAYOUT if compression.encodes(slot)] == list(ENCODED)
    few = type(compression)(min_size=LAYOUT["c"].size)
    assert [slot.name for slot in LAYOUT if few.encodes(slot)] == ["c"]


@every_compression
def test_what_arrives_and_what_is_kept_are_what_was_sent(compression: Compression) -> None:
    wire, residual = Wire(compression), np.zeros(LAYOUT.size, np.float32)
    residual[wire.inside()] = 0.5
    values, before = gradients(1), residual.copy()
    arrived = wire.send(values, residual, factor=2.0)
    meant = np.where(wire.inside(), values.astype(np.float64) + 2.0 * before, 0)
    np.testing.assert_allclose(arrived.astype(np.float64) + residual, meant, atol=2e-6 * abs(meant).max())
    assert np.linalg.norm(residual) < np.linalg.norm(meant)


@every_compression
def test_nothing_is_lost_over_many_steps(compression: Compression) -> None:
    wire, residual = Wire(compression), np.zeros(LAYOUT.size, np.float32)
    sent, arrived = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size)
    for step in range(60):
        values = gradients(step % 4)
        sent += np.where(wire.inside(), values, 0)
        arrived += wire.send(values, residual, key=step)
    np.testing.assert_allclose(arrived + residual, sent, atol=1e-5 * abs(sent).max())
    assert np.linalg.norm(arrived - sent) < 0.5 * np.linalg.norm(sent)


@pytest.mark.parametrize("name", BOUNDS)
def test_it_is_near_without_error_feedback(name: str) -> None:
    compression = COMPRESSIONS.get(name)(error_feedback=False)
    wire, values = Wire(compression), gradients(2)
    arrived, (own, of_block) = wire.send(values, None), BOUNDS[name]
    for slot in wire.tensors:
        for lo in range(slot.offset, slot.stop, compression.unit):
            block = slice(lo, min(lo + compression.unit, slot.stop))
            bound = own * abs(values[block]) + of_block * abs(values[block]).max()
            assert np.all(abs(arrived[block] - values[block]) <= bound * (1 + 1e-5))


@pytest.mark.parametrize("name", UNBIASED)
def test_its_mean_is_right_without_error_feedback(name: str) -> None:
    wire, values = Wire(COMPRESSIONS.get(name)(error_feedback=False, **UNBIASED[name])), gradients(3)
    draws = np.array([wire.send(values, None, key=977 * step + 5) for step in range(400)], np.float64)
    meant, mean = np.where(wire.inside(), values, 0), draws.mean(0)
    variance = draws.var(0) / len(draws)  # of the mean
    assert np.mean(np.square(mean - meant)) < 1.2 * np.mean(variance)
    for weights in (meant, abs(meant), np.ones_like(meant)):  # nor are sums over the numbers off
        assert abs(weights @ (mean - meant)) < 4 * np.sqrt(np.square(weights) @ variance)


@every_compression
def test_error_feedback_finds_the_bottom_of_a_bowl(compression: Compression) -> None:
    """Plain descent on sum of (curvature (x - x0)^2) / 2 with encoded gradients comes to x0."""
    random = np.random.default_rng(5)
    curvature = random.uniform(0.5, 1.5, LAYOUT.size).astype(np.float32)
    wire, x0 = Wire(compression), random.standard_normal(LAYOUT.size).astype(np.float32)
    x, residual = np.zeros(LAYOUT.size, np.float32), np.zeros(LAYOUT.size, np.float32)
    rate = {"top_k": 0.02, "random_k": 0.05, "power_sgd": 0.05}.get(COMPRESSIONS.name_of(type(compression)), 0.1)
    for step in range(int(30 / rate)):
        x -= np.float32(rate) * wire.send(curvature * (x - x0), residual, key=step)
    assert np.linalg.norm((x - x0)[wire.inside()]) < 0.05 * np.linalg.norm(x0)


@every_compression
@every_feedback
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives(compression: Compression, feedback: bool, broken: float) -> None:
    wire = Wire(compression)
    for at in (LAYOUT["a"].offset, LAYOUT["a"].stop - 1, LAYOUT["c"].offset + 1234, LAYOUT["e"].stop - 1):
        values = gradients(4)
        values[at] = broken
        arrived = wire.send(values, np.zeros_like(values) if feedback else None)
        assert not np.isfinite(arrived).all()


@every_compression
@every_feedback
def test_nothing_comes_of_nothing(compression: Compression, feedback: bool) -> None:
    wire, values = Wire(compression), np.zeros(LAYOUT.size, np.float32)
    residual = np.zeros(LAYOUT.size, np.float32) if feedback else None
    assert not wire.send(values, residual).any()
    assert residual is None or not residual.any()


@every_compression
def test_tiny_and_huge_numbers(compression: Compression) -> None:
    for size in (1e-41, 1e-35, 1e30):
        wire, residual = Wire(compression), np.zeros(LAYOUT.size, np.float32)
        values = (np.sign(gradients(5)) * size).astype(np.float32)
        arrived = wire.send(values, residual)
        meant = np.where(wire.inside(), values, 0)
        assert np.isfinite(arrived).all()
        # A block that is too small to have a scale stays in the residual.
        np.testing.assert_allclose(arrived.astype(np.float64) + residual, meant, atol=max(1e-5 * size, 1e-44))


@every_compression
def test_no_tensor_is_no_payload(compression: Compression) -> None:
    none = type(compression)(min_size=10**9)
    wire = Wire(none)
    assert wire.tensors == []
    assert none.payload_bytes([]) == 0
    assert not wire.send(gradients(6), np.zeros(LAYOUT.size, np.float32)).any()


@every_compression
def test_job_file(compression: Compression) -> None:
    spec = spec_of(COMPRESSIONS, compression, "type")
    assert part_from(COMPRESSIONS, spec, "strategy.compression", "type") == compression


@pytest.mark.parametrize(
    ("name", "options", "bits"),
    [
        ("float16", {}, 16 + 32 / 256),
        ("bfloat16", {}, 16 + 32 / 256),
        ("int8", {"block": 512}, 8 + 32 / 512),
        ("int4", {"block": 128}, 4 + 32 / 128),
        ("one_bit", {"block": 256}, 1 + 32 / 256),
        ("top_k", {"ratio": 0.01}, 0.01 * 64),
        ("random_k", {"ratio": 0.25}, 0.25 * 32),
        ("power_sgd", {"rank": 4}, 4 * 2 / 1024 * 32),
    ],
)
def test_it_says_its_bytes(name: str, options: dict, bits: float) -> None:
    tensors = list(Layout([("a", (1024, 1024))]))
    assert COMPRESSIONS.get(name)(**options).payload_bytes(tensors) == pytest.approx(bits / 8 * 1024**2, rel=1e-4)
