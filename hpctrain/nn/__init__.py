"""Networks: layers, losses, metrics, flat buffers, and the composer that compiles a model into one step.

This file holds the tables of names; a new layer, loss or metric is one file and one line here.
"""

from hpctrain.registry import Registry

LAYERS = Registry(
    "layer",
    {
        "dense": "hpctrain.nn.layers.dense:Dense",
        "dropout": "hpctrain.nn.layers.dropout:Dropout",
        "flatten": "hpctrain.nn.layers.flatten:Flatten",
        "gelu": "hpctrain.nn.layers.activations:Gelu",
        "leaky_relu": "hpctrain.nn.layers.activations:LeakyRelu",
        "relu": "hpctrain.nn.layers.activations:Relu",
        "sigmoid": "hpctrain.nn.layers.activations:Sigmoid",
        "tanh": "hpctrain.nn.layers.activations:Tanh",
    },
)

LOSSES = Registry(
    "loss",
    {
        "binary_cross_entropy": "hpctrain.nn.losses:BinaryCrossEntropy",
        "huber": "hpctrain.nn.losses:Huber",
        "mae": "hpctrain.nn.losses:MeanAbsoluteError",
        "mse": "hpctrain.nn.losses:MeanSquaredError",
        "softmax_cross_entropy": "hpctrain.nn.losses:SoftmaxCrossEntropy",
    },
)

METRICS = Registry(
    "metric",
    {
        "accuracy": "hpctrain.nn.metrics:Accuracy",
        "mae": "hpctrain.nn.metrics:MeanAbsoluteErrorMetric",
        "r2": "hpctrain.nn.metrics:R2",
        "rmse": "hpctrain.nn.metrics:RootMeanSquaredError",
        "top_k": "hpctrain.nn.metrics:TopK",
    },
)
