"""Metrics: what a network is judged by.  Exact over all ranks: states are merged, never means of means.

`base` has the contract; the computing is in `kernels/metrics.py` and `kernels/metrics_classes.py`.
"""

from hpctrain.nn.metrics.auc import Auc
from hpctrain.nn.metrics.base import Metric, by_name
from hpctrain.nn.metrics.classes import (
    F1,
    Accuracy,
    BalancedAccuracy,
    ConfusionMatrix,
    Perplexity,
    Precision,
    Recall,
    TopK,
)
from hpctrain.nn.metrics.real import R2, MeanAbsoluteErrorMetric, MeanPredictor, RootMeanSquaredError

__all__ = [
    "F1",
    "R2",
    "Accuracy",
    "Auc",
    "BalancedAccuracy",
    "ConfusionMatrix",
    "MeanAbsoluteErrorMetric",
    "MeanPredictor",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
    "TopK",
    "by_name",
    "default_metrics",
]


def default_metrics(target_kind: str) -> list[Metric]:
    """Return the metrics of a job that names none: accuracy for class labels, mae and r2 for real targets."""
    return [Accuracy()] if target_kind == "class" else [MeanAbsoluteErrorMetric(), R2()]
