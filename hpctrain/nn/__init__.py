"""Networks: layers, losses, metrics, flat buffers, and the composer that compiles a model into one step.

This file holds the tables of names; a new layer, loss, metric or preset is one file and one line here.
"""

from hpctrain.registry import Registry

LAYERS = Registry(
    "layer",
    {
        "add": "hpctrain.nn.layers.containers:Add",
        "attention": "hpctrain.nn.layers.attention:Attention",
        "avg_pool1d": "hpctrain.nn.layers.pooling:AvgPool1d",
        "avg_pool2d": "hpctrain.nn.layers.pooling:AvgPool2d",
        "avg_pool3d": "hpctrain.nn.layers.pooling:AvgPool3d",
        "batch_norm": "hpctrain.nn.layers.normalisation:BatchNorm",
        "columns": "hpctrain.nn.layers.columns:Columns",
        "concat": "hpctrain.nn.layers.containers:Concat",
        "conv1d": "hpctrain.nn.layers.conv:Conv1d",
        "conv2d": "hpctrain.nn.layers.conv:Conv2d",
        "conv3d": "hpctrain.nn.layers.conv:Conv3d",
        "conv_transpose1d": "hpctrain.nn.layers.conv_transposed:ConvTranspose1d",
        "conv_transpose2d": "hpctrain.nn.layers.conv_transposed:ConvTranspose2d",
        "conv_transpose3d": "hpctrain.nn.layers.conv_transposed:ConvTranspose3d",
        "dense": "hpctrain.nn.layers.dense:Dense",
        "depthwise_conv1d": "hpctrain.nn.layers.conv:DepthwiseConv1d",
        "depthwise_conv2d": "hpctrain.nn.layers.conv:DepthwiseConv2d",
        "depthwise_conv3d": "hpctrain.nn.layers.conv:DepthwiseConv3d",
        "dropout": "hpctrain.nn.layers.dropout:Dropout",
        "elu": "hpctrain.nn.layers.activations:Elu",
        "embedding": "hpctrain.nn.layers.embedding:Embedding",
        "flatten": "hpctrain.nn.layers.flatten:Flatten",
        "gelu": "hpctrain.nn.layers.activations:Gelu",
        "global_avg_pool": "hpctrain.nn.layers.pooling:GlobalAvgPool",
        "global_max_pool": "hpctrain.nn.layers.pooling:GlobalMaxPool",
        "group_norm": "hpctrain.nn.layers.normalisation:GroupNorm",
        "gru": "hpctrain.nn.layers.recurrent:Gru",
        "last_step": "hpctrain.nn.layers.recurrent:LastStep",
        "layer_norm": "hpctrain.nn.layers.normalisation:LayerNorm",
        "leaky_relu": "hpctrain.nn.layers.activations:LeakyRelu",
        "learned_positions": "hpctrain.nn.layers.positions:LearnedPositions",
        "lstm": "hpctrain.nn.layers.recurrent:Lstm",
        "max_pool1d": "hpctrain.nn.layers.pooling:MaxPool1d",
        "max_pool2d": "hpctrain.nn.layers.pooling:MaxPool2d",
        "max_pool3d": "hpctrain.nn.layers.pooling:MaxPool3d",
        "multiply": "hpctrain.nn.layers.containers:Multiply",
        "padded": "hpctrain.nn.layers.padded:Padded",
        "parallel": "hpctrain.nn.layers.containers:Parallel",
        "permute": "hpctrain.nn.layers.shapes:Permute",
        "relu": "hpctrain.nn.layers.activations:Relu",
        "reshape": "hpctrain.nn.layers.shapes:Reshape",
        "residual": "hpctrain.nn.layers.containers:Residual",
        "rms_norm": "hpctrain.nn.layers.normalisation:RmsNorm",
        "sigmoid": "hpctrain.nn.layers.activations:Sigmoid",
        "silu": "hpctrain.nn.layers.activations:Silu",
        "sinusoidal_positions": "hpctrain.nn.layers.positions:SinusoidalPositions",
        "softmax": "hpctrain.nn.layers.activations:Softmax",
        "softplus": "hpctrain.nn.layers.activations:Softplus",
        "squeeze_excite": "hpctrain.nn.layers.squeeze_excite:SqueezeExcite",
        "tanh": "hpctrain.nn.layers.activations:Tanh",
        "upsample1d": "hpctrain.nn.layers.upsample:Upsample1d",
        "upsample2d": "hpctrain.nn.layers.upsample:Upsample2d",
        "upsample3d": "hpctrain.nn.layers.upsample:Upsample3d",
        "zero_pad": "hpctrain.nn.layers.zero_pad:ZeroPad",
    },
)

LOSSES = Registry(
    "loss",
    {
        "binary_cross_entropy": "hpctrain.nn.losses.classes:BinaryCrossEntropy",
        "huber": "hpctrain.nn.losses.real:Huber",
        "mae": "hpctrain.nn.losses.real:MeanAbsoluteError",
        "mse": "hpctrain.nn.losses.real:MeanSquaredError",
        "poisson": "hpctrain.nn.losses.real:Poisson",
        "quantile": "hpctrain.nn.losses.real:Quantile",
        "softmax_cross_entropy": "hpctrain.nn.losses.classes:SoftmaxCrossEntropy",
    },
)

PRESETS = Registry(
    "preset",
    {
        "cosmoflow": "hpctrain.nn.presets:CosmoFlow",
        "gpt": "hpctrain.nn.presets:Gpt",
        "lstm": "hpctrain.nn.presets:Lstm",
        "mlp": "hpctrain.nn.presets:Mlp",
        "resnet14": "hpctrain.nn.presets:ResNet14",
        "resnet20": "hpctrain.nn.presets:ResNet20",
        "resnet32": "hpctrain.nn.presets:ResNet32",
        "resnet56": "hpctrain.nn.presets:ResNet56",
        "resnet8": "hpctrain.nn.presets:ResNet8",
        "unet": "hpctrain.nn.presets:UNet",
    },
)

METRICS = Registry(
    "metric",
    {
        "accuracy": "hpctrain.nn.metrics.classes:Accuracy",
        "auc": "hpctrain.nn.metrics.auc:Auc",
        "balanced_accuracy": "hpctrain.nn.metrics.classes:BalancedAccuracy",
        "confusion_matrix": "hpctrain.nn.metrics.classes:ConfusionMatrix",
        "f1": "hpctrain.nn.metrics.classes:F1",
        "mae": "hpctrain.nn.metrics.real:MeanAbsoluteErrorMetric",
        "perplexity": "hpctrain.nn.metrics.classes:Perplexity",
        "precision": "hpctrain.nn.metrics.classes:Precision",
        "r2": "hpctrain.nn.metrics.real:R2",
        "recall": "hpctrain.nn.metrics.classes:Recall",
        "rmse": "hpctrain.nn.metrics.real:RootMeanSquaredError",
        "top_k": "hpctrain.nn.metrics.classes:TopK",
    },
)
