"""`auto`: which collective suits the ranks that there are.  A fixed rule, no measurement: the same each time."""

from __future__ import annotations

import numpy as np

from hpctrain.comm.collectives import COLLECTIVES
from hpctrain.comm.collectives.base import Collective
from hpctrain.comm.group import Group
from hpctrain.comm.shared_memory import shared_rows
from hpctrain.errors import UserError

AUTO = "auto"
_SHARED, _SINGLE = "window", "native"


def likely(name: str, size: int) -> str:
    """Return the collective that a name will probably stand for with `size` ranks, whatever nodes they are on."""
    return name if name != AUTO else _SHARED if size > 1 else _SINGLE


def allocate(name: str, group: Group, count: int) -> np.ndarray:
    """Return a zeroed float32 array of the kind that a collective combines best.  Collective.

    Under "auto" ranks that cannot share memory take memory of their own; otherwise that is a `UserError`.
    """
    if name != AUTO:
        return COLLECTIVES.get(name).allocate(group, count)
    try:
        return COLLECTIVES.get(_SHARED).allocate(group, count)
    except UserError as error:
        if not error.agreed:
            raise
        return group.allocate(count)


def collective_for(name: str, group: Group, buffer: np.ndarray) -> tuple[str, Collective]:
    """Return the collective for a buffer that will be combined again and again, and its name.  Collective.

    "auto" is "window" where ranks share a node, and the buffer lies in memory that they share; else "native".
    """
    if name == AUTO:
        is_shared = group.local_size == 1 or shared_rows(buffer) is not None
        together = group.nodes < group.size and all(group.all_gather_objects(is_shared))
        name = _SHARED if together else _SINGLE
    return name, COLLECTIVES.get(name)(group)
