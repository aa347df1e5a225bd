"""`Model` and the composer: layouts, in-place plans, dropout keyed by example, float64 reference of whole networks."""

import numpy as np
import pytest

from hpctrain.batch import Batch
from hpctrain.errors import UserError
from hpctrain.nn import flat
from hpctrain.nn.check import check_outputs, output_shape
from hpctrain.nn.graph import build_graph
from hpctrain.nn.layers.activations import Gelu, Relu, Tanh
from hpctrain.nn.layers.base import Layer
from hpctrain.nn.layers.containers import Parallel, Residual
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.layers.dropout import Dropout
from hpctrain.nn.layers.flatten import Flatten
from hpctrain.nn.losses import Quantile, SoftmaxCrossEntropy
from hpctrain.nn.model import Model
from hpctrain.nn.plan import make_plan


def class_batch(rows=6, features=4, classes=3, step=0, first=0):
    random = np.random.default_rng(1)
    return Batch(
        random.normal(size=(rows, features)).astype("f4"),
        random.integers(0, classes, rows),
        np.ones(rows, np.float32),
        np.arange(first, first + rows),
        step,
        0,
    )


def network(*layers, shape=(4,), seed=0, dtype=np.float32):
    model = Model(layers, shape, SoftmaxCrossEntropy(), "class", seed=seed, dtype=dtype)
    model.initialize()
    return model


def test_layout_aligns_tensors_and_names_them_by_layer():
    model = network(Dense(units=5), Relu(), Dense(units=3))
    assert [(slot.name, slot.offset, slot.shape) for slot in model.layout] == [
        ("dense0.weight", 0, (4, 5)),
        ("dense0.bias", 32, (5,)),
        ("dense2.weight", 48, (5, 3)),
        ("dense2.bias", 64, (3,)),
    ]
    assert model.layout.size == 80
    assert len(model.grad_buffer) == 80 + flat.TAIL
    assert model.parameters == 4 * 5 + 5 + 5 * 3 + 3


def test_padding_is_not_hashed():
    model = network(Dense(units=3))
    before = model.sha256
    model.params[model.layout["dense0.bias"].stop] = 7.0
    assert model.sha256 == before
    model.params[0] += 1
    assert model.sha256 != before


def test_initial_weights_depend_on_the_seed_and_stay_in_the_bounds_of_he_uniform():
    one, same, other = (network(Dense(units=50), shape=(30,), seed=seed) for seed in (3, 3, 4))
    assert one.sha256 == same.sha256 != other.sha256
    weight = one.layout.view(one.params, "dense0.weight")
    bound = np.sqrt(6 / 30)
    assert np.abs(weight).max() <= bound
    assert weight.std() == pytest.approx(bound / np.sqrt(3), rel=0.05)
    assert not one.layout.view(one.params, "dense0.bias").any()


def test_activations_work_in_place_only_where_nobody_needs_the_old_values():
    # tanh's derivative needs its own output, so the dropout behind it must not write over that; flatten moves nothing.
    plan = make_plan(build_graph([Dense(units=4), Tanh(), Dropout(rate=0.5), Flatten(), Dense(units=2), Tanh()], (4,)))
    dense, tanh, dropout, last, last_tanh = (step.values["y"].root for step in plan.forward)
    assert tanh is dense
    assert dropout is not tanh
    assert plan.forward[3].values["x"].root is dropout
    assert last_tanh is last
    # In evaluation dropout is not there: the next layer reads what tanh wrote.
    dense, tanh, last, last_tanh = plan.predict
    assert last.values["x"].root is tanh.values["y"].root is dense.values["y"].root


def test_the_inputs_are_never_written_to():
    plan = make_plan(build_graph([Relu(), Dense(units=2)], (4,)))
    assert plan.inputs.external
    assert not plan.forward[0].values["y"].root.external
    model = network(Relu(), Dense(units=3))
    batch = class_batch()
    before = batch.inputs.copy()
    model.loss_and_grad(batch)
    model.predict(batch.inputs, np.zeros((batch.rows, 3), np.float32))
    np.testing.assert_array_equal(batch.inputs, before)


def test_a_network_equals_a_float64_numpy_network():
    model = network(Flatten(), Dense(units=8), Relu(), Dense(units=6), Gelu(), Dense(units=3), shape=(2, 2))
    batch = class_batch(rows=9)
    batch.inputs = batch.inputs.reshape(9, 2, 2)
    loss = model.loss_and_grad(batch)
    p = {name: view.astype("f8") for name, view in model.layout.views(model.params).items()}
    from scipy.special import erf, log_softmax

    x = batch.inputs.reshape(9, 4).astype("f8")
    a = np.maximum(x @ p["dense1.weight"] + p["dense1.bias"], 0)
    z = a @ p["dense3.weight"] + p["dense3.bias"]
    logits = z * 0.5 * (1 + erf(z / np.sqrt(2))) @ p["dense5.weight"] + p["dense5.bias"]
    expected = -log_softmax(logits, axis=1)[np.arange(9), batch.targets].sum()
    assert loss == pytest.approx(expected, rel=1e-6)
    outputs = np.zeros((9, 3), np.float32)
    model.predict(batch.inputs, outputs)
    np.testing.assert_allclose(outputs, logits, rtol=1e-5, atol=1e-6)


def test_a_loss_may_have_a_tuple_of_constants():
    levels = (0.1, 0.5, 0.9)
    model = Model((Dense(units=6),), (4,), Quantile(levels=levels), "real", seed=3)
    model.initialize()
    random = np.random.default_rng(5)
    x, y = random.normal(size=(7, 4)).astype("f4"), random.normal(size=(7, 2)).astype("f4")
    weight = random.random(7).astype("f4")
    total = model.loss_and_grad(Batch(x, y, weight, np.arange(7), 0, 0), 0.0)
    outputs = x.astype("f8") @ model.layout.view(model.params, "dense0.weight").astype("f8")
    error = y.astype("f8")[:, :, None] - outputs.reshape(7, 2, 3)
    expected = np.maximum(np.array(levels) * error, (np.array(levels) - 1) * error).mean(axis=(1, 2)) @ weight
    assert total == pytest.approx(expected, rel=1e-5)


def test_dropout_mask_belongs_to_example_and_step_not_to_the_place_in_the_batch():
    model = network(Dropout(rate=0.5), Dense(units=3))
    whole = class_batch(rows=8, first=20)
    losses = [model.loss_and_grad(whole.slice(row, row + 1)) for row in range(8)]
    assert model.loss_and_grad(whole) == pytest.approx(sum(losses), rel=1e-6)
    whole.step = 1
    assert model.loss_and_grad(whole) != pytest.approx(sum(losses), rel=1e-6)


def test_dropout_keeps_the_right_share_and_scales_it():
    model = network(Dropout(rate=0.3), Dense(units=3), shape=(500,))
    weight = model.layout.view(model.params, "dense1.weight")
    weight[:] = 0
    weight[:, 0] = 1.0
    batch = class_batch(rows=40, features=500)
    batch.inputs[:] = 1.0
    batch.targets[:] = 1
    # The first logit is the sum of the kept features over 0.7; the loss of class 1 is that sum, but for exp(-sum).
    loss = model.loss_and_grad(batch)
    assert loss / (40 * 500) == pytest.approx(1.0, abs=0.02)


def test_empty_batches_and_growing_ones():
    model = network(Dense(units=5), Relu(), Dense(units=3))
    assert model.loss_and_grad(class_batch(rows=0)) == 0.0
    assert not model.grads.any()
    model.loss_and_grad(class_batch(rows=3))
    small = model.grads.copy()
    model.grad_buffer[:] = 0
    model.reserve(500)
    model.loss_and_grad(class_batch(rows=3))
    np.testing.assert_array_equal(model.grads, small)


def test_two_layers_of_one_kind_and_layers_without_parameters_in_front():
    model = network(Relu(), Tanh(), Dense(units=3))
    # Nothing before the first trainable layer is differentiated.
    assert [step.node.kind for step in model.plan.backward] == ["dense"]
    assert model.loss_and_grad(class_batch()) > 0


def test_networks_that_cannot_be_built_name_the_layer():
    with pytest.raises(UserError, match=r"nothing to train.*\n.*2 layers"):
        output_shape([Relu(), Flatten()], (4,))
    layers = [Dense(units=3)]
    with pytest.raises(UserError, match=r'model\.layers\.0 \(dense0\).*shape \(8, 3\).*3 classes(.|\n)*"flatten"'):
        check_outputs(layers, output_shape(layers, (8, 8)), SoftmaxCrossEntropy(), "class", 3, ())

    class OnlyFlat(Layer):
        def build(self, in_shape):
            raise UserError("it takes one axis")

    with pytest.raises(UserError, match=r"model\.layers\.1 \(onlyflat1\) cannot take inputs of shape \(8, 3\)"):
        build_graph([Dense(units=3), OnlyFlat()], (8, 8))


def test_an_edited_kernel_of_the_user_changes_the_generated_module(tmp_path):
    """The module's name carries the sources of the kernels that it calls, in whatever file they stand."""
    import importlib.util

    source = """
from hpctrain.kernels.jit import kernel
from hpctrain.nn.layers.base import BuiltLayer, Call, Layer

@kernel
def scale(x, y):
    for i in range(x.size):
        y[i] = FACTOR * x[i]

class Scale(Layer):
    def build(self, in_shape):
        flat = {name: () for name in ("x", "y", "dx", "dy")}
        return BuiltLayer(in_shape, Call(scale, ("x", "y")), Call(scale, ("dy", "dx")), views=flat)
"""
    results = []
    for factor in ("2.0", "-2.0"):
        path = tmp_path / "own_layer.py"
        path.write_text(source.replace("FACTOR", factor))
        spec = importlib.util.spec_from_file_location("own_layer", path)
        module = importlib.util.module_from_spec(spec)
        import sys

        sys.modules["own_layer"] = module
        spec.loader.exec_module(module)
        model = network(module.Scale(), Dense(units=3))
        outputs = np.zeros((6, 3), np.float32)
        model.predict(class_batch().inputs, outputs)
        results.append(outputs)
    np.testing.assert_allclose(results[0], -results[1], rtol=1e-6)
    assert np.abs(results[0]).max() > 0


def test_memory_is_used_again_and_values_that_are_needed_are_not_written_over():
    """Replays a deep branched network's passes on the plan's offsets: nobody may read what another has overwritten."""
    block = [Dense(units=4), Tanh(), Dense(units=4)]
    layers = [
        Dense(units=4),
        Residual(layers=block),
        Parallel(branches=[block, [], [Gelu()]], merge="concat"),
        Dense(units=4),
        Residual(layers=[Residual(layers=block), Relu()], shortcut=[Dense(units=4)]),
        Dense(units=3),
    ]
    plan = make_plan(build_graph(layers, (4,)))
    values = {id(value.root) for step in [*plan.forward, *plan.backward] for value in [*step.reads, *step.writes]}
    taken = sum(root.size for root in {id(v.root): v.root for s in plan.forward for v in s.writes}.values())
    assert len(values) > 10
    assert plan.row_floats < 2 * taken
    holder: dict[int, object] = {}
    for step in [*plan.forward, *plan.backward]:
        written = {id(value.root): value.root for value in step.writes}.values()
        for value in step.reads:
            root = value.root
            if not root.external and root not in written and root.first >= 0 and id(root) != id(plan.d_output.root):
                cells = {holder.get(cell) for cell in range(root.offset, root.offset + root.size)}
                assert cells == {root} or step.node.built.buffers
        for root in written:
            for cell in range(root.offset, root.offset + root.size):
                holder[cell] = root


def test_branched_networks_have_the_gradients_of_finite_differences():
    layers = [
        Dense(units=4),
        Residual(layers=[Dense(units=4), Tanh()]),
        Parallel(branches=[[Dense(units=3)], [], [Gelu()]]),
        Parallel(branches=[[], [Dense(units=11), Tanh()]], merge="multiply"),
        Residual(layers=[Residual(layers=[Dense(units=11), Relu()])], shortcut=[Dense(units=11)]),
        Dense(units=3),
    ]
    model = network(*layers, dtype=np.float64)
    batch = class_batch(rows=3)
    batch.inputs = batch.inputs.astype("f8")
    model.loss_and_grad(batch, beta=0.0)
    gradient = model.grads.copy()
    random = np.random.default_rng(2)
    for slot in model.layout:
        for index in random.integers(slot.offset, slot.stop, 6):
            value = model.params[index]
            model.params[index] = value + 1e-6
            above = model.loss_and_grad(batch)
            model.params[index] = value - 1e-6
            below = model.loss_and_grad(batch)
            model.params[index] = value
            assert gradient[index] == pytest.approx((above - below) / 2e-6, rel=1e-5, abs=1e-7), slot.name


def test_gradients_are_stored_or_added_as_told():
    model = network(Dense(units=5), Relu(), Dense(units=3))
    batch = class_batch()
    model.grads[:] = np.nan
    model.loss_and_grad(batch, beta=0.0)
    stored = model.grads.copy()
    model.loss_and_grad(batch, beta=1.0)
    for slot in model.layout:
        part = slice(slot.offset, slot.stop)
        np.testing.assert_allclose(model.grads[part], 2 * stored[part], rtol=1e-6)
