"""Preparation: what is done to inputs and real targets while they are read, in float64, and turned back afterwards.

This file holds the table of names.  `base` has the contract of a step, `chain` a list of steps bound to the shape of an
example, `fit` the statistics of the training part that steps need.
"""

from hpctrain.registry import Registry

PREPARATIONS = Registry(
    "preparation",
    {
        "clip": "hpctrain.data.prepare.clip:Clip",
        "fill": "hpctrain.data.prepare.fill:Fill",
        "log": "hpctrain.data.prepare.log:Log",
        "min_max": "hpctrain.data.prepare.min_max:MinMax",
        "one_hot": "hpctrain.data.prepare.one_hot:OneHot",
        "scale": "hpctrain.data.prepare.scale:Scale",
        "standardise": "hpctrain.data.prepare.standardise:Standardise",
    },
)
