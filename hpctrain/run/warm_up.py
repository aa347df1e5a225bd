"""Kernels made ready before the first step: one rank a node compiles, the others wait and load from the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from hpctrain.comm.group import Group
from hpctrain.kernels.jit import cache_dir, clear_old, compiling


class Warmable(Protocol):
    """Something with kernels."""

    def warm_up(self) -> None:
        """Run every kernel once on dummy data, without communication."""


def warm_up(group: Group, parts: Sequence[tuple[str, Warmable]], tell: Callable[[str], None]) -> float:
    """Run every part's kernels once; return the seconds that took until all ranks were ready.  Collective.

    `parts` are (name for people, part); `tell` prints a line.  The ranks that wait sleep, so that the one that compiles
    has the core to itself.
    """
    started = time.perf_counter()
    before = _compiled_files()
    if group.local_rank == 0:
        is_cold = before == 0
        if is_cold:
            tell("compiling kernels (once for this version and CPU; later runs load them from the cache)")
        for name, part in parts:
            part_started = time.perf_counter()
            with compiling():
                part.warm_up()
            seconds = time.perf_counter() - part_started
            if seconds > 2.0:
                tell(f"compiled the kernels of the {name} in {seconds:.1f} s")
        clear_old()
    group.barrier(patient=True)
    if group.local_rank != 0:
        for _, part in parts:
            part.warm_up()
    group.barrier(patient=True)
    seconds = time.perf_counter() - started
    compiled = _compiled_files() - before
    tell(f"kernels ready in {seconds:.1f} s ({f'{compiled} compiled' if compiled > 0 else 'from the cache'})")
    return seconds


def _compiled_files() -> int:
    """Count the compiled functions in the cache folder."""
    return sum(1 for _ in cache_dir().rglob("*.nbc"))
