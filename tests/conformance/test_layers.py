"""Every registered layer, by itself: gradients by finite differences in float64, forward by a plain numpy definition.

A new layer is picked up by its registration; a file of `layer_cases/` gives it an entry in `EXAMPLES` (options, and odd
shapes to try) and one in `DEFINITIONS` (its evaluation pass, written from the definition).  Kernels are called as the
composer calls them but without a composed model, so that each is compiled once for all shapes; composites, which have
no kernels, are tried layer by layer.
"""

import numpy as np
import pytest
from conformance.cases import (
    ACROSS_ROWS,
    CASES,
    COMPOSITES,
    DEFINITIONS,
    EXAMPLES,
    FAMILIES,
    FIRST_CASES,
    MERGES,
    WHOLE_NUMBERS,
    GraphCalls,
    calls_of,
    check_every_gradient,
    inputs_of,
    is_composite,
    layer_of,
)
from layer_calls import LayerCalls

from hpctrain.nn import LAYERS
from hpctrain.nn.graph import build_graph
from hpctrain.nn.layers.base import calls_of as calls_in


def defined(calls, name):
    """The layer's result by its definition, in float64."""
    own = {spec.name: calls.values[spec.name].astype("f8") for spec in calls.built.params}
    result = DEFINITIONS[name](calls.values["x"].astype("f8"), own, EXAMPLES[name][0])
    return result.reshape(calls.rows, *calls.built.out_shape)


def test_every_registered_layer_has_an_example_and_a_definition():
    assert {name.split()[0] for name in EXAMPLES} == set(LAYERS) - MERGES
    assert set(EXAMPLES) == set(DEFINITIONS)


def test_families_do_not_name_a_layer_twice():
    assert len(EXAMPLES) == sum(len(module.EXAMPLES) for module in FAMILIES)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_gradients_equal_finite_differences(name, shape):
    for rows in (1, 3):
        check_every_gradient(calls_of(name, shape, rows), name)


@pytest.mark.parametrize(("name", "shape"), FIRST_CASES)
def test_fused_with_an_activation_it_is_both(name, shape):
    for activation in layer_of(name).build_many((shape,)).fused:
        calls = calls_of(name, shape, 3, fused=activation)
        check_every_gradient(calls, name)
        expected = DEFINITIONS[activation](defined(calls, name), {}, EXAMPLES[activation][0])
        if name not in ACROSS_ROWS:
            np.testing.assert_allclose(calls.predict(), expected, rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(calls.forward(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_evaluation_equals_the_definition(name, shape):
    for rows in (1, 4):
        calls = calls_of(name, shape, rows)
        np.testing.assert_allclose(calls.predict(), defined(calls, name), rtol=1e-7, atol=1e-9)
        single = calls_of(name, shape, rows, np.float32)
        np.testing.assert_allclose(single.predict(), defined(single, name), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_float32_gradients_agree_with_float64(name, shape):
    """The kernels that train have other code for float32 in places."""
    single, exact = calls_of(name, shape, 7, np.float32), calls_of(name, shape, 7)
    for key in [spec.name for spec in exact.built.params] + ["x"]:
        exact.values[key][...] = single.values[key]
    dy = np.random.default_rng(9).normal(size=single.values["y"].shape).astype("f4")
    results = []
    for calls in (single, exact):
        calls.forward()
        results.append(calls.gradients(dy))
    for key, expected in results[1].items():
        if key != "x" or name not in WHOLE_NUMBERS:
            np.testing.assert_allclose(results[0][key], expected, rtol=1e-3, atol=2e-4, err_msg=key)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "shape"), FIRST_CASES)
def test_parameter_gradients_are_added_to_and_do_without_dx(name, shape, dtype):
    """In float32, too: the products that train store and add by code of their own."""
    calls = calls_of(name, shape, 5, dtype)
    if not calls.built.params:
        return
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype is np.float64 else {"rtol": 1e-5, "atol": 1e-5}
    dy = np.random.default_rng(9).normal(size=calls.values["y"].shape)
    calls.forward()
    stored = calls.gradients(dy)
    calls.forward()
    added = calls.gradients(dy, beta=1.0)
    for spec in calls.built.params:
        np.testing.assert_allclose(added[spec.name], 2 * stored[spec.name], **close)
        calls.values[f"d_{spec.name}"][...] = 0.0
    calls.forward()
    calls.values["dy"][...] = dy
    calls.run(calls.built.backward_params, 1.0)
    for spec in calls.built.params:
        np.testing.assert_allclose(calls.values[f"d_{spec.name}"], stored[spec.name], **close)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "shape"), FIRST_CASES)
def test_in_the_memory_of_its_arguments_it_does_the_same(name, shape, dtype):
    """As a plan lays values out: y over x and dx over dy where the layer allows it, and scratch over what it names."""
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype is np.float64 else {"rtol": 1e-5, "atol": 1e-5}
    for fused in (None, *layer_of(name).build_many((shape,)).fused):
        apart, shared = (calls_of(name, shape, 3, dtype, fused) for _ in range(2))
        built, values = shared.built, shared.values
        for key, spec in built.buffers.items():
            if spec.over:
                values[key] = values[spec.over].reshape(values[key].shape)
        if built.in_place:
            values["y"] = values["x"]
            np.testing.assert_allclose(shared.predict(), apart.predict(), **close)
            values["x"][...] = apart.values["x"]
            if any("x" in call.args for call in calls_in(built.backward)):
                values["y"] = np.empty_like(values["x"])  # the plan keeps what backward reads
            values["dx"] = values["dy"]
        elif not any(spec.over for spec in built.buffers.values()):
            continue
        np.testing.assert_allclose(shared.forward(), apart.forward(), **close)
        dy = np.random.default_rng(9).normal(size=values["dy"].shape)
        expected = apart.gradients(dy)
        for key, gradient in shared.gradients(dy).items():
            np.testing.assert_allclose(gradient, expected[key], **close, err_msg=key)


@pytest.mark.parametrize(("name", "shape"), [case for case in FIRST_CASES if case[0] not in ACROSS_ROWS])
def test_rows_do_not_depend_on_each_other(name, shape):
    """Each row alone gives its row of the batch, and the parameters' gradients sum up; no rows at all work too."""
    whole = calls_of(name, shape, 4)
    dy = np.random.default_rng(9).normal(size=whole.values["y"].shape)
    expected, gradients = whole.forward(), whole.gradients(dy)
    sums = dict.fromkeys(gradients, 0.0)
    for lo, hi in [(0, 1), (1, 1), (1, 4)]:
        part = LayerCalls(layer_of(name), [whole.values["x"][lo:hi]])
        part.constants["ids"] = whole.constants["ids"][lo:hi]
        for spec in part.built.params:
            part.values[spec.name][...] = whole.values[spec.name]
        np.testing.assert_allclose(part.forward(), expected[lo:hi], rtol=1e-10, atol=1e-12)
        for key, value in part.gradients(dy[lo:hi]).items():
            if key == "x" and name not in WHOLE_NUMBERS:
                np.testing.assert_allclose(value, gradients["x"][lo:hi], rtol=1e-10, atol=1e-12)
            elif key != "x":
                sums[key] = sums[key] + value
    for spec in whole.built.params:
        np.testing.assert_allclose(sums[spec.name], gradients[spec.name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, shape in FIRST_CASES if shape == (5,)])
def test_nan_stays_visible(name):
    calls = LayerCalls(layer_of(name), [np.array([[1.0, np.nan, 2.0, 3.0, 4.0]])], np.float32)
    assert np.isnan(calls.predict()).any()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if is_composite(name)])
def test_composites_equal_their_definition(name):
    """Layer by layer through its graph."""
    shape = EXAMPLES[name][1][0]
    graph = build_graph([layer_of(name)], shape)
    values = {0: inputs_of(name, shape, 4)}
    own = {}
    for node in graph.nodes:
        calls = LayerCalls.of_built(node.built, [values[value] for value in node.inputs])
        values[node.output] = calls.predict()
        for spec in node.built.params:
            own[f"{node.name.partition('.')[2]}.{spec.name}"] = calls.values[spec.name]
    expected = DEFINITIONS[name](values[0], own, EXAMPLES[name][0])
    np.testing.assert_allclose(values[graph.output], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "shape"), COMPOSITES)
def test_gradients_of_composites_equal_finite_differences(name, shape):
    """Layer by layer through its graph, which takes the merging layers along; whole models: test_model.py."""
    for rows in (1, 3):
        check_every_gradient(GraphCalls(name, shape, rows), name)


def test_every_merging_layer_is_in_a_composite_that_is_checked():
    graphs = [GraphCalls(name, shape, 1).graph for name, shape in COMPOSITES]
    assert {node.kind for graph in graphs for node in graph.nodes} >= MERGES
