"""Ways to combine a buffer over all ranks.  This file holds the table of names."""

from hpctrain.registry import Registry

COLLECTIVES = Registry(
    "collective",
    {
        "native": "hpctrain.comm.collectives.native:NativeCollective",
        "ring": "hpctrain.comm.collectives.ring:RingCollective",
    },
)
