"""`KnownCluster`: what rank 0 has kept of the measurements of a cluster, in a JSON file beside the compiled kernels."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.comm.group import Group
from hpctrain.errors import UserError
from hpctrain.files import atomic_text
from hpctrain.kernels.jit import cache_dir
from hpctrain.plan.machine import Machine
from hpctrain.version import __version__


class Candidate(NamedTuple):
    """A way to sum: a collective, the bytes of its chunks (0: as it takes them by itself).

    leader  one rank of each node sends everything; else each its part
    """

    collective: str
    chunk_bytes: int = 0
    leader: bool = False


class KnownCluster:
    """The speeds of a cluster, and the times of collectives by the buffer's size; the same on every rank.

    machine  None: not measured yet

    A cluster is where the ranks are, the processor, the MPI library and this version of hpctrain.  Sizes within a
    factor of two count as the same.  Making one is collective.
    """

    def __init__(self, group: Group, ranks: str) -> None:
        key = json.dumps([ranks, _processor(), group.library, __version__])
        self._path = cache_dir() / "clusters" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        self._group = group
        self.machine: Machine | None = None
        self._sizes: dict[str, dict[str, Any]] = {}
        if (kept := group.broadcast_object(self._read() if group.rank == 0 else None)) is not None:
            self.machine, self._sizes = kept

    def times(self, length: int) -> dict[Candidate, float]:
        """Return seconds for `length` elements by the way to sum; empty: none were measured."""
        found = self._sizes.get(_size_class(length))
        if found is None:
            return {}
        return {way: seconds * length / found["length"] for way, seconds in found["times"]}

    def keep(self, length: int, times: dict[Candidate, float]) -> None:
        """Note times; a folder that cannot be written to is no harm."""
        self._sizes = {**self._sizes, _size_class(length): {"length": length, "times": list(times.items())}}
        if self._group.rank == 0:
            with contextlib.suppress(OSError, UserError):
                self._path.parent.mkdir(exist_ok=True)
                values = {"machine": self.machine.to_dict(), "sizes": self._sizes}
                atomic_text(self._path, json.dumps(values, indent=1) + "\n")

    def _read(self) -> tuple[Machine, dict[str, dict[str, Any]]] | None:
        """Return what is kept; None where there is nothing, or nothing that can be used."""
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            sizes = {
                size: {
                    "length": int(entry["length"]),
                    "times": [(Candidate(*way), float(seconds)) for way, seconds in entry["times"]],
                }
                for size, entry in values["sizes"].items()
            }
            return Machine.from_dict(values["machine"]), sizes
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _size_class(length: int) -> str:
    return str(length.bit_length())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
