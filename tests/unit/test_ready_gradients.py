"""A backward pass tells where gradients are final: what it hands out early is what stands there at its end."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpctrain.batch import Batch
from hpctrain.comm.single_group import SingleGroup
from hpctrain.nn import LAYERS, flat
from hpctrain.nn.losses import SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.options import part_from
from hpctrain.strategies.reducers.overlapped import choose_cuts
from hpctrain.training.trainer import Trainer

NETWORKS = {
    "dense": ([{"type": "dense", "units": 24}, "relu", {"type": "dense", "units": 17}, "tanh"], (6,)),
    "residual": (
        [
            {"type": "dense", "units": 16},
            "batch_norm",
            {
                "type": "residual",
                "layers": [{"type": "dense", "units": 16}, "batch_norm", "relu"],
                "shortcut": [{"type": "dense", "units": 16}],
            },
            {"type": "batch_norm", "sync": True},
        ],
        (6,),
    ),
    "two meetings": ([{"type": "dense", "units": 8}, {"type": "batch_norm", "sync": True}, "relu"], (6,)),
}


def model_of(name):
    layers, shape = NETWORKS[name]
    parts = [part_from(LAYERS, layer, "layer", "type") for layer in [*layers, {"type": "dense", "units": 3}]]
    model = Model(parts, shape, SoftmaxCrossEntropy(), "class", seed=1)
    model.initialize()
    return model


def batch_for(model, rows=7):
    random = np.random.default_rng(2)
    inputs = random.normal(size=(rows, *model.input_shape)).astype(np.float32)
    return Batch(inputs, random.integers(0, 3, rows), np.ones(rows, np.float32), np.arange(rows), 0, 0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_what_is_ready_does_not_change_any_more(name, beta):
    plain, model = model_of(name), model_of(name)
    for each in (plain, model):
        each.grads[:] = 1.0  # the padding too: it is nobody's
        each.stats[:] = 1.0
    expected_loss = plain.loss_and_grad(batch_for(plain), beta)
    offsets = model.ready_offsets
    assert list(offsets) == sorted(set(offsets), reverse=True)
    assert offsets[-1] == 0
    assert len(offsets) == len([node for node in model.graph.nodes if node.built.params])
    model.cut_at(offsets[:-1])
    seen = []

    def ready(lo, loss):
        assert loss == expected_loss
        seen.append((lo, model.grad_buffer[lo : -flat.TAIL].copy()))

    assert model.loss_and_grad(batch_for(model), beta, ready) == expected_loss
    assert [lo for lo, _ in seen] == list(offsets[:-1])
    for lo, early in seen:
        np.testing.assert_array_equal(early, model.grad_buffer[lo : -flat.TAIL])
    np.testing.assert_array_equal(model.grad_buffer, plain.grad_buffer)


def test_without_a_listener_cuts_change_nothing():
    model = model_of("two meetings")
    model.cut_at(model.ready_offsets)
    before = model.loss_and_grad(batch_for(model), 0.0)
    model.cut_at(())
    assert model.loss_and_grad(batch_for(model), 0.0) == before


@pytest.mark.parametrize(
    ("ready", "size", "bucket", "cuts"),
    [
        ((90, 60, 30, 0), 100, 10, (90, 60, 30)),
        ((90, 60, 30, 0), 100, 35, (60,)),
        ((90, 60, 30, 0), 100, 1000, ()),
        ((0,), 100, 1, ()),
        ((99, 98, 0), 100, 2, (98,)),
    ],
)
def test_buckets_have_the_size_that_was_asked_for_or_more(ready, size, bucket, cuts):
    assert choose_cuts(ready, size, bucket) == cuts


def test_nothing_is_written_to_what_has_left():
    """Where the last gradients are still computed, the loss of all ranks may stand in the tail already."""
    model, seen = model_of("dense"), []
    model.cut_at(model.ready_offsets[:-1])

    def ready(lo, step):
        seen.append(float(model.tail[flat.LOSS]))
        model.tail[flat.LOSS] = 1234.0  # the sum over the ranks

    strategy = SimpleNamespace(cuts=model.ready_offsets[:-1], ready=ready)
    trainer = Trainer(SingleGroup(), model, strategy, None, None, 1, None, SimpleNamespace(requested=None))
    batch = batch_for(model)
    loss = trainer._sum_gradients(batch, 7.0)
    assert loss == model_of("dense").loss_and_grad(batch, 0.0)
    assert seen == [pytest.approx(loss, rel=1e-6), 1234.0]
    assert model.tail[flat.LOSS] == 1234.0
