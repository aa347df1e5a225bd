"""The schedules: which rank sends which parts of a buffer to whom, and when.  One idea a file; pure data, see `Hop`.

This file holds the table of those that make an all-reduce: what runs under a name is what is simulated and priced.
"""

from hpctrain.comm.schedule import Algorithm
from hpctrain.comm.schedules import double_tree, halving_doubling, ring, tree

SUMMING: dict[str, tuple[Algorithm, ...]] = {
    "double_tree": (double_tree.reduce, double_tree.broadcast),
    "halving_doubling": (halving_doubling.reduce_scatter, halving_doubling.all_gather),
    "ring": (ring.reduce_scatter, ring.all_gather),
    "tree": (tree.reduce, tree.broadcast),
}
