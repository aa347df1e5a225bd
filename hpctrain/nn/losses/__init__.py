"""Losses: what training makes small.  `base` has the contract; the computing is in `kernels/losses.py`."""

from hpctrain.nn.losses.base import Loss
from hpctrain.nn.losses.classes import BinaryCrossEntropy, SoftmaxCrossEntropy
from hpctrain.nn.losses.real import Huber, MeanAbsoluteError, MeanSquaredError, Poisson, Quantile

__all__ = [
    "BinaryCrossEntropy",
    "Huber",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Poisson",
    "Quantile",
    "SoftmaxCrossEntropy",
    "default_loss",
]


def default_loss(target_kind: str) -> Loss:
    """Return the loss of a job that names none: softmax cross-entropy for class labels, mse for real targets."""
    return SoftmaxCrossEntropy() if target_kind == "class" else MeanSquaredError()
