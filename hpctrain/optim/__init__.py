"""Optimizers, schedules and clipping.  This file holds the tables of names."""

from hpctrain.registry import Registry

OPTIMIZERS = Registry(
    "optimizer",
    {
        "adagrad": "hpctrain.optim.adaptive:Adagrad",
        "adam": "hpctrain.optim.adam:Adam",
        "adamw": "hpctrain.optim.adam:AdamW",
        "lamb": "hpctrain.optim.by_tensor:Lamb",
        "lars": "hpctrain.optim.by_tensor:Lars",
        "lion": "hpctrain.optim.lion:Lion",
        "rmsprop": "hpctrain.optim.adaptive:RmsProp",
        "sgd": "hpctrain.optim.sgd:Sgd",
    },
)

SCHEDULES = Registry(
    "schedule",
    {
        "constant": "hpctrain.optim.schedules:Constant",
        "cosine": "hpctrain.optim.schedules:Cosine",
        "exponential": "hpctrain.optim.schedules:Exponential",
        "multi_step": "hpctrain.optim.schedules:MultiStep",
        "one_cycle": "hpctrain.optim.schedules:OneCycle",
        "polynomial": "hpctrain.optim.schedules:Polynomial",
        "reduce_on_plateau": "hpctrain.optim.plateau:ReduceOnPlateau",
        "step": "hpctrain.optim.schedules:Step",
    },
)
