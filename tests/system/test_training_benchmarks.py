"""The benchmarks of training: what they hand from PyTorch to ours is the same network, and mistakes are told."""

import importlib.util
import itertools
import json
import sys

import numpy as np
import pytest
from launching import ROOT, mpirun

SCRIPTS = ["train_step.py", "memory.py", "compile_time.py"]


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location("benchmark_models", ROOT / "benchmarks" / "models.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def train_step():
    sys.path.insert(0, str(ROOT / "benchmarks"))  # the scripts import each other by name
    try:
        return importlib.import_module("train_step")
    finally:
        sys.path.pop(0)


def test_the_ten_models_of_the_targets_are_there(models):
    assert list(models.CASES) == [
        *("mlp-small", "mlp-mnist", "mlp-higgs", "mlp-wide", "cnn-mnist", "cnn-lenet"),
        *("resnet8", "resnet20", "cnn3d", "gpt-tiny"),
    ]


def test_a_dense_weight_behind_a_flatten_sees_the_same_numbers(models):
    rng = np.random.default_rng(0)
    image, weight = rng.normal(size=(3, 4, 5)), rng.normal(size=(7, 60))  # channels first; (out, in)
    ours = models.flattened_weight(weight, (3, 4, 5))
    assert np.allclose(np.moveaxis(image, 0, -1).ravel() @ ours, weight @ image.ravel())


@pytest.mark.parametrize("shape", [(7, 5), (7, 5, 3, 2), (7, 5, 4, 3, 2)])
def test_weights_are_turned_axis_by_axis(models, shape):
    weight = np.random.default_rng(0).normal(size=shape)
    ours = models.turned(weight)
    assert ours.shape == (*shape[2:], shape[1], shape[0])
    place = tuple(np.random.default_rng(1).integers(0, shape))
    assert ours[(*place[2:], place[1], place[0])] == weight[place]


@pytest.mark.parametrize("name", ["mlp-small", "mlp-higgs", "cnn3d", "gpt-tiny"])
def test_batches_hold_the_same_rows_with_channels_last(models, name):
    case = models.CASES[name]
    inputs, targets = case.data(seed=1)
    batches = case.batches(inputs, targets)
    assert len(batches) == models.BATCHES
    batch = batches[3]
    expected = np.moveaxis(inputs[3], 1, -1) if len(case.shape) > 1 else inputs[3]
    assert np.array_equal(batch.inputs, expected)
    assert batch.inputs.dtype == np.float32
    assert batch.inputs.flags.c_contiguous
    assert np.array_equal(batch.targets, targets[3])
    assert np.array_equal(case.data(seed=1)[0], inputs)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_teaches_by_example(script):
    done = mpirun(0, ROOT / "benchmarks" / script, "--help", timeout=60)
    assert done.returncode == 0
    assert f"python benchmarks/{script}" in done.stdout


@pytest.mark.parametrize("script", ["train_step.py", "memory.py"])
def test_a_missing_peer_is_told_once(script):
    done = mpirun(2 if script == "train_step.py" else 0, ROOT / "benchmarks" / script, timeout=60)
    assert done.returncode == 1
    assert done.output.count("--peer-python torch/bin/python") == 1
    assert "Traceback" not in done.output


def test_an_unknown_model_is_told():
    done = mpirun(0, ROOT / "benchmarks" / "train_step.py", "--models", "mlp-small,vgg", timeout=60)
    assert done.returncode == 2
    assert "'vgg' is not one of mlp-small, " in done.output


@pytest.mark.parametrize(
    ("difference", "rounding", "exact", "agree"),
    [
        (9e-5, None, None, True),
        (2e-4, 3e-4, 1e-9, True),  # float32 is too coarse, on the peer's side too
        (2e-4, 5e-5, 1e-9, False),  # the peer's is not: ours is worse
        (2e-4, 3e-4, 2e-4, False),
        (float("nan"), 3e-4, float("nan"), False),
    ],
)
def test_losses_agree_in_float32_or_where_that_is_too_coarse_in_float64(train_step, difference, rounding, exact, agree):
    record = {"loss_difference": difference, "peer_rounding": rounding, "exact_difference": exact}

    assert train_step.losses_agree(record) is agree


def test_weak_scaling_and_overlap_time_one_rank_and_all(tmp_path):
    file, small = tmp_path / "records.json", ("--models", "mlp-small", "--pairs", "1", "--json")
    done = mpirun(2, ROOT / "benchmarks" / "weak_scaling.py", *small, file, "--seconds", "0.01", timeout=100)
    assert done.returncode == 0, done.output
    (record,) = json.loads(file.read_text())
    assert record["ours_efficiency"] == pytest.approx(record["ours_alone_s"] / record["ours_s"])
    assert record["peer_efficiency"] is None
    done = mpirun(2, ROOT / "benchmarks" / "overlap.py", *small, file, "--bucket", "2 kB", timeout=100)
    assert done.returncode == 0, done.output
    (record,) = json.loads(file.read_text())
    assert record["buckets"] == 3  # one a layer: the least, of the last one, has 672 numbers
    assert record["bytes"] == 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 16 + 16)
    assert record["alone_s"] > 0
    for kind, buckets in (("without", 1), ("with", 3)):
        bars = record["timelines"][kind]
        computed = [(what, begin, end) for row, what, begin, end, _ in bars if row == "computing"]
        assert [what for what, *_ in computed] == ["forward", *["backward"] * buckets, "update"]
        assert all(begin <= end <= later for (_, begin, end), (_, later, _) in itertools.pairwise(computed))
        sent = [(begin, end, size) for row, _, begin, end, size in bars if row == "sums"]
        assert len(sent) == buckets
        assert sum(size for *_, size in sent) == record["bytes"]
        assert computed[0][2] < sent[0][0], "the first gradients are final behind the forward pass"
        assert sent[-1][1] < computed[-1][1], "the update comes after the sums"
