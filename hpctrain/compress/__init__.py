"""Ways to send fewer bytes of gradients than they have.  This file holds the table of names."""

from hpctrain.registry import Registry

COMPRESSIONS = Registry(
    "compression",
    {
        "bfloat16": "hpctrain.compress.floats:BFloat16",
        "float16": "hpctrain.compress.floats:Float16",
        "int4": "hpctrain.compress.integers:Int4",
        "int8": "hpctrain.compress.integers:Int8",
        "one_bit": "hpctrain.compress.one_bit:OneBit",
        "power_sgd": "hpctrain.compress.power_sgd:PowerSgd",
        "random_k": "hpctrain.compress.random_k:RandomK",
        "top_k": "hpctrain.compress.top_k:TopK",
    },
)
