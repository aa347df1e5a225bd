"""Ways to combine a buffer over all ranks.  This file holds the table of names."""

from hpctrain.registry import Registry

COLLECTIVES = Registry(
    "collective",
    {
        "double_tree": "hpctrain.comm.collectives.double_tree:DoubleTreeCollective",
        "halving_doubling": "hpctrain.comm.collectives.halving_doubling:HalvingDoublingCollective",
        "native": "hpctrain.comm.collectives.native:NativeCollective",
        "ring": "hpctrain.comm.collectives.ring:RingCollective",
        "tree": "hpctrain.comm.collectives.tree:TreeCollective",
        "window": "hpctrain.comm.collectives.window:WindowCollective",
    },
)
