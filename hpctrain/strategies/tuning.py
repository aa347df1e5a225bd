"""How large buckets should be that leave during the backward pass: steps are tried with each size that differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hpctrain.comm import probe
from hpctrain.comm.group import Group
from hpctrain.strategies.reducers.overlapped import Overlapped, choose_cuts

# A backward pass that stops at the cuts and calls `ready(lo, loss)` there; over rows that stand for others.
Pass = Callable[[Sequence[int], Callable[[int, float], None]], None]

USUAL_BYTES = 1 << 20
_TRIED_BYTES = (256 << 10, USUAL_BYTES, 4 << 20, 16 << 20)
_BUDGET_S, _MOST_ROUNDS = 1.0, 7  # of more than one round
_SAME = 1.02  # within this the larger buckets are taken: fewer messages take less of the cores


def bucket_sizes(ready: Sequence[int], size: int) -> dict[int, tuple[int, ...]]:
    """Return bytes of buckets that are worth trying and their cuts, ascending; the last one is the whole buffer.

    Of sizes that cut a buffer of `size` floats at the same places the largest one is there.
    """
    cuts = {length: choose_cuts(ready, size, length // 4) for length in (*_TRIED_BYTES, 4 * size)}
    last = {places: length for length, places in cuts.items()}
    return {length: places for places, length in sorted(last.items(), key=lambda item: item[1])}


def tuned_bucket(group: Group, reducer: Overlapped, sizes: dict[int, tuple[int, ...]], a_pass: Pass) -> tuple[int, str]:
    """Return the bytes of the buckets with which a step is quickest, and what to say of it; the reducer then has them.

    The gradients' buffer is overwritten.  Collective; the same on every rank.
    """
    started = time.perf_counter()
    steps = [partial(_step, reducer, cuts, a_pass) for cuts in sizes.values()]
    seconds = probe.call_times(group, steps, 1)
    rounds = int(np.clip(_BUDGET_S / sum(seconds), 1, _MOST_ROUNDS))
    if rounds > 1:
        seconds = probe.call_times(group, steps, rounds)
    times = dict(zip(sizes, seconds, strict=True))
    best = max(size for size, step_s in times.items() if step_s <= _SAME * min(seconds))
    reducer.cut(sizes[best])
    whole = max(sizes)
    words = {size: "the whole" if size == whole else f"{size / 2**20:g} MB" for size in sizes}
    others = ", ".join(f"{words[size]} {step_s * 1e3:.3g} ms" for size, step_s in times.items() if size != best)
    return best, (
        f"buckets of {words[best]}: {times[best] * 1e3:.3g} ms a step without the update "
        f"({others}; measured in {time.perf_counter() - started:.1f} s)"
    )


def _step(reducer: Overlapped, cuts: tuple[int, ...], a_pass: Pass) -> None:
    reducer.cut(cuts)
    a_pass(cuts, lambda lo, _: reducer.ready(lo, 0))
    reducer.reduce(0)
