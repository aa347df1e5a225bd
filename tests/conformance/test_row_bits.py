"""A row has the same bits whatever rows stand beside it: in forward passes, evaluation and input gradients.

On this rests that a result can be the same at any world size.  Layers across rows (batch norm) are the exception.
"""

import numpy as np
import pytest
from conformance.cases import ACROSS_ROWS, FIRST_CASES, WHOLE_NUMBERS, inputs_of, layer_of
from layer_calls import LayerCalls

ROWS, CUTS = 70, (0, 1, 3, 20, 70)  # more rows than a tile or a packed block takes, and parts of 1, 2, 17 and 50


def passes(name, inputs, dy, first):
    calls = LayerCalls(layer_of(name), [inputs], np.float32)
    calls.constants["ids"] += first
    evaluated = calls.predict().copy()
    trained = calls.forward().copy()
    results = {"evaluated": evaluated, "trained": trained}
    gradients = calls.gradients(dy)
    return results if name in WHOLE_NUMBERS else results | {"dx": gradients["x"]}


@pytest.mark.parametrize(("name", "shape"), [case for case in FIRST_CASES if case[0] not in ACROSS_ROWS])
def test_a_row_has_the_same_bits_in_any_batch(name, shape):
    inputs = inputs_of(name, shape, ROWS)
    out_shape = layer_of(name).build_many((shape,)).out_shape
    dy = np.random.default_rng(9).normal(size=(ROWS, *out_shape))

    whole = passes(name, inputs, dy, 0)

    for first, last in zip(CUTS, CUTS[1:], strict=False):
        part = passes(name, inputs[first:last], dy[first:last], first)
        for result, values in part.items():
            np.testing.assert_array_equal(
                values, whole[result][first:last], err_msg=f"{result}, rows {first} to {last}"
            )
