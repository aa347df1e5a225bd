"""Strategies: how gradients become new weights.  This file holds the table of names."""

from hpctrain.registry import Registry

STRATEGIES = Registry(
    "strategy",
    {
        "all_reduce": "hpctrain.strategies.all_reduce:AllReduce",
        "sharded_optimizer": "hpctrain.strategies.sharded_optimizer:ShardedOptimizer",
    },
)
