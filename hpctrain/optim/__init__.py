"""Optimizers, schedules and clipping.  This file holds the tables of names."""

from hpctrain.registry import Registry

OPTIMIZERS = Registry(
    "optimizer",
    {
        "adam": "hpctrain.optim.adam:Adam",
        "adamw": "hpctrain.optim.adam:AdamW",
        "sgd": "hpctrain.optim.sgd:Sgd",
    },
)

SCHEDULES = Registry(
    "schedule",
    {
        "constant": "hpctrain.optim.schedules:Constant",
        "cosine": "hpctrain.optim.schedules:Cosine",
        "step": "hpctrain.optim.schedules:Step",
    },
)
