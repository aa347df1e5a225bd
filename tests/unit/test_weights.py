"""Weights, masks and labels for each position: from the file to a batch, and every mistake in them."""

import h5py
import numpy as np
import pytest

from hpctrain.comm.single_group import SingleGroup
from hpctrain.data.facts import DataFacts
from hpctrain.data.format import RowFormat
from hpctrain.data.hdf5 import Hdf5Source
from hpctrain.data.shard import MemoryShard
from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn.losses.classes import BinaryCrossEntropy
from hpctrain.nn.losses.real import MeanSquaredError, Poisson
from hpctrain.run.handing_out import hand_out
from hpctrain.run.master import resolve

ROWS, T = 7, 4


@pytest.fixture
def tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(ROWS, 3)),
        "label": np.array([0, 2, -1, 1, 0, 5, -1]),
        "tokens": rng.integers(0, 5, (ROWS, T)),
        "images": rng.integers(0, 2, (ROWS, 2, 3)),
        "real": rng.normal(size=(ROWS, T)),
        "weight": np.array([0, 1, 2, 0.5, 0, 1, 3]),
        "mask": rng.integers(0, 2, (ROWS, T)),
        "row_mask": np.array([True, False, True, True, True, True, False]),
    }


@pytest.fixture
def source_of(tmp_path, tables):
    """A function that writes the tables, those given in place of the ones above, and opens a source on them."""

    def make(target: str, instead: dict | None = None, **options: object) -> Hdf5Source:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"
        with h5py.File(path, "w") as file:
            for name, values in {**tables, **(instead or {})}.items():
                file.create_dataset(name, data=values)
        return Hdf5Source([str(path)], "x", target, **options)

    return make


def batch_weight(source: Hdf5Source) -> np.ndarray:
    """The weights that batches of a source's rows have."""
    inputs, targets, weight = source.read(0, ROWS)
    shard = MemoryShard(source.format, inputs, targets, np.array([0, ROWS]), 0, weight)
    return np.concatenate([batch.weight for batch in shard.batches(3)])


def test_labels_of_any_shape_have_positions(source_of, tables):
    for name, positions in (("tokens", T), ("images", 6)):
        source = source_of(name)
        assert source.format.position_shape == tables[name].shape[1:]
        targets = source.read(2, 6)[1]
        assert targets.dtype == np.int64
        assert np.array_equal(targets, tables[name][2:6].reshape(4, positions))
        assert batch_weight(source).tolist() == np.ones((ROWS, positions)).tolist()
    assert source_of("real").format.position_shape == ()


def test_weight_mask_and_ignored_label_are_multiplied(source_of, tables):
    weight, mask = tables["weight"].astype("f4"), tables["mask"]
    everything = {"weight": "weight", "mask": "mask", "ignore_label": 3}
    counted = tables["tokens"] != 3
    for options, expected in [
        ({"weight": "weight"}, np.repeat(weight[:, None], T, 1)),
        ({"mask": "mask"}, mask),
        ({"mask": "row_mask"}, np.repeat(tables["row_mask"][:, None], T, 1)),
        ({"ignore_label": 3}, counted),
        (everything, weight[:, None] * mask * counted),
    ]:
        assert np.array_equal(batch_weight(source_of("tokens", **options)), expected.astype("f4"))
    single = source_of("label", weight="weight", mask="row_mask", ignore_label=-1)
    assert np.array_equal(batch_weight(single), weight * tables["row_mask"] * (tables["label"] != -1))
    for mask_name, shape in (("mask", (ROWS, T)), ("row_mask", (ROWS,))):
        real = source_of("real", weight="weight", mask=mask_name)
        expected = weight[:, None] * tables[mask_name].reshape(ROWS, -1)
        assert np.array_equal(batch_weight(real), expected.reshape(shape).astype("f4"))


def test_what_does_not_count_may_hold_anything(source_of, tables):
    label = source_of("label", ignore_label=-1)
    label.check_values(*label.read(0, ROWS), 0)
    facts = DataFacts.collect(label)
    assert (facts.classes, facts.label_min.value, facts.label_max.row, facts.missing) == (6, 0, 5, [3, 4])
    assert facts.weighted
    weighted = source_of("label", weight="weight", instead={"weight": np.array([1, 1, 0, 1, 1, 0, 0])})
    assert DataFacts.collect(weighted).classes == 3
    broken = np.where(tables["mask"] == 1, tables["real"], np.nan)
    real = source_of("real", mask="mask", instead={"real": broken})
    real.check_values(*real.read(0, ROWS), 0)
    strange = np.where(tables["mask"] == 1, tables["tokens"], -9)
    tokens = source_of("tokens", mask="mask", instead={"tokens": strange})
    tokens.check_values(*tokens.read(0, ROWS), 0)
    assert DataFacts.collect(tokens).classes == strange.max() + 1


def test_what_counts_is_checked(source_of, tables):
    label = source_of("label", weight="weight")
    with pytest.raises(UserError, match=r"negative: row 2 of 'label'(.|\n)*found: *-1(.|\n)*ignore_label"):
        label.check_values(*label.read(0, ROWS), 0)
    with pytest.raises(UserError, match=r"negative: row 2 of 'label'(.|\n)*found: *-1"):
        DataFacts.collect(label)
    tokens = tables["tokens"].copy()
    tokens[4, 2] = -2
    source = source_of("tokens", instead={"tokens": tokens})
    with pytest.raises(UserError, match="negative: row 4 of 'tokens'"):
        source.check_values(*source.read(0, ROWS), 0)
    with pytest.raises(UserError, match=r"negative: row 4 of 'tokens'(.|\n)*found: *-2"):
        DataFacts.collect(source)
    real = source_of("real", weight="weight", instead={"real": np.where(np.arange(7)[:, None] == 3, np.nan, 1.0)})
    with pytest.raises(UserError, match="NaN in the data: row 3 of 'real'"):
        real.check_values(*real.read(0, ROWS), 0)
    with pytest.raises(UserError, match="no label counts"):
        DataFacts.collect(source_of("label", weight="weight", instead={"weight": np.zeros(ROWS)}))


@pytest.mark.parametrize(("loss", "bad"), [(Poisson(), -0.5), (BinaryCrossEntropy(), 1.5), (BinaryCrossEntropy(), -1)])
def test_targets_that_the_loss_cannot_take_are_named(source_of, tables, loss, bad):
    real = np.abs(np.tanh(tables["real"]))
    source = source_of("real", {"real": real}, bounds=loss.bounds)
    source.check_values(*source.read(0, ROWS), 0)
    real[5, 2] = bad
    source = source_of("real", {"real": real}, bounds=loss.bounds)
    for check, arrays in ((source.check_values, source.read(2, 6)), (source.check_targets, source.read(2, 6)[1:])):
        with pytest.raises(UserError, match=f"no number that the loss can take: row 5 of 'real'(.|\n)*{bad}"):
            check(*arrays, 2)
    mask = np.ones((ROWS, T))
    mask[5, 2] = 0
    masked = source_of("real", {"real": real, "mask": mask}, mask="mask", bounds=loss.bounds)
    masked.check_values(*masked.read(0, ROWS), 0)
    assert MeanSquaredError.bounds is None
    for part in ("files", "test_files"):
        data = {"files": source_of("real", {"real": np.full((ROWS, T), 0.5)}).files[0], "input": "x", "target": "real"}
        job = Job(data={**data, part: source.files[0]}, loss={"name": loss.name}, run={"epochs": 1})
        prepared = resolve(job)
        with pytest.raises(UserError, match="row 5 of 'real'"):
            hand_out(SingleGroup(), prepared, lambda text: None)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
def test_bad_weights_are_named(source_of, bad):
    weight = np.ones(ROWS)
    weight[5] = bad
    with pytest.raises(UserError, match=f"a weight has a value(.|\n)*row 5 of 'weight'(.|\n)*{bad}(.|\n)*0 or more"):
        source_of("label", weight="weight", instead={"weight": weight}).read(1, ROWS)
    mask = np.ones((ROWS, T))
    mask[5, 1] = bad
    with pytest.raises(UserError, match=f"a mask has a value(.|\n)*row 5 of 'mask'(.|\n)*{bad}(.|\n)*1 \\(counts\\)"):
        source_of("tokens", mask="mask", instead={"mask": mask}).read(1, ROWS)


def test_shapes_that_do_not_fit_are_refused(source_of):
    for target, options in [
        ("label", {"mask": "mask"}),
        ("images", {"mask": "mask"}),
        ("real", {"mask": "images"}),
        ("label", {"weight": "short", "instead": {"short": np.ones(3)}}),
    ]:
        with pytest.raises(UserError, match=rf"does not fit the targets(.|\n)*\({ROWS},\)"):
            source_of(target, **options)
    with pytest.raises(UserError, match=r"data\.ignore_label is for class labels(.|\n)*data\.mask"):
        source_of("real", ignore_label=-1)
    with pytest.raises(UserError, match=r"data\.weight = 'wait': there is no such dataset(.|\n)*'weight'"):
        source_of("label", weight="wait")


def test_a_resumed_run_must_find_the_same_weights(source_of):
    assert "weight" not in source_of("label").fingerprint()
    assert source_of("label", weight="weight").fingerprint()["weight"] == "weight"


@pytest.mark.parametrize("weight_shape", [None, (), (T,)])
def test_a_shard_can_be_weighed(weight_shape):
    form = RowFormat((1,), "class", (T,), weight_shape)
    inputs, targets, stored = form.empty(3)
    inputs[:], targets[:], stored[:] = 0, np.arange(12).reshape(3, T), 2
    shard = MemoryShard(form, inputs, targets, np.array([0, 3]), 0, stored)
    weighed = shard.weighed(lambda targets, weight: weight * (targets % 2))
    expected = (targets % 2) * (1 if weight_shape is None else 2)
    assert np.array_equal(np.concatenate([batch.weight for batch in weighed.batches(2)]), expected)
    assert weighed.format.weight_words == T
    assert weighed.nbytes == shard.inputs.nbytes + shard.targets.nbytes + 4 * 3 * T
