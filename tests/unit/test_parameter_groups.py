"""Parameter groups: which factors a tensor gets by its name, and patterns that make no sense."""

from __future__ import annotations

import pytest

from hpctrain.errors import UserError
from hpctrain.nn.flat import Layout
from hpctrain.optim.adam import AdamW
from hpctrain.optim.groups import ParameterGroup, update_table
from hpctrain.optim.table import UpdateTable

LAYOUT = Layout([("dense0.weight", (3, 5)), ("dense0.bias", (5,)), ("norm1.scale", (5,)), ("dense2.weight", (5, 2))])
DECAYS = {"dense0.weight": True, "dense0.bias": False, "norm1.scale": False, "dense2.weight": True}


def table(*groups: dict, decay_all: bool = False) -> UpdateTable:
    return update_table(LAYOUT, DECAYS, AdamW(groups=groups).groups, decay_all)


def test_biases_and_scales_do_not_decay() -> None:
    plain = table()
    assert plain.lr_factor.tolist() == [1, 1, 1, 1]
    assert plain.decay_factor.tolist() == [1, 0, 0, 1]
    assert table(decay_all=True).decay_factor.tolist() == [1, 1, 1, 1]
    assert (plain.starts.tolist(), plain.stops.tolist()) == ([0, 16, 32, 48], [15, 21, 37, 58])


def test_patterns_set_factors() -> None:
    found = table({"pattern": "dense*.weight", "lr_factor": 0.5, "weight_decay_factor": 3})
    assert found.lr_factor.tolist() == [0.5, 1, 1, 0.5]
    assert found.decay_factor.tolist() == [3, 0, 0, 3]
    assert table({"pattern": "*.bias", "weight_decay_factor": 1}).decay_factor.tolist() == [1, 1, 0, 1]
    assert table({"pattern": "dense[02].*", "lr_factor": 2}).lr_factor.tolist() == [2, 2, 1, 2]


def test_later_groups_count_before_earlier_ones_key_by_key() -> None:
    found = table(
        {"pattern": "*", "lr_factor": 0.1, "frozen": True},
        {"pattern": "dense2.*", "frozen": False},
        {"pattern": "norm?.scale", "lr_factor": 4, "frozen": False},
    )
    assert found.tensors.tolist() == [2, 3]
    assert found.lr_factor.tolist() == pytest.approx([4, 0.1])
    assert found.starts.tolist() == [32, 48]
    assert found.tensor_count == 4


def test_a_pattern_that_fits_nothing_lists_the_names() -> None:
    with pytest.raises(UserError, match=r"optimizer.groups.1.pattern fits no tensor") as caught:
        table({"pattern": "*.bias"}, {"pattern": "dense1.weight", "lr_factor": 2})
    for words in ("'dense1.weight'", "dense0.weight, dense0.bias, norm1.scale, dense2.weight", "did you mean 'dense"):
        assert words in caught.value.message


def test_something_must_be_left_to_train() -> None:
    with pytest.raises(UserError, match="nothing is left to train"):
        table({"pattern": "dense*", "frozen": True}, {"pattern": "norm*", "frozen": True})


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(UserError, match="optimizer.groups.0.pattern = ''"):
        AdamW.checked({"groups": [{"pattern": ""}]}, "optimizer")
    assert ParameterGroup(pattern="a").frozen is None
