"""Presets: sizes and shapes known from elsewhere, options in a job, and what does not fit is told."""

import math

import pytest

from hpctrain.errors import UserError
from hpctrain.job import Job
from hpctrain.nn import PRESETS
from hpctrain.nn.graph import build_graph

DATA = {"files": "a.h5", "input": "x", "target": "y"}

# Numbers of parameters: of the same networks in PyTorch (dense, ResNet, GPT), or by hand from the papers' tables.
SIZES = [
    ("mlp", {"width": 128, "depth": 1}, (64,), 10, (10,), 64 * 128 + 128 + 1290),
    ("mlp", {}, (28, 28, 1), 10, (10,), 784 * 256 + 256 + 256 * 257 + 2570),
    ("resnet8", {}, (32, 32, 3), 10, (10,), 77_850),
    ("resnet14", {}, (32, 32, 3), 10, (10,), 175_066),
    ("resnet20", {}, (32, 32, 3), 10, (10,), 272_282),
    ("resnet32", {}, (32, 32, 3), 10, (10,), 466_714),
    ("resnet56", {}, (32, 32, 3), 10, (10,), 855_578),
    ("resnet8", {"width": 8}, (28, 28), 7, (7,), None),
    # MLPerf HPC: five convolutions of 2^3, 4 -> 32 -> ... -> 512 channels, at 128^3; dense 128, 64, 4.
    (
        *("cosmoflow", {"width": 32, "dropout": 0.5}, (128, 128, 128, 4), 4, (4,)),
        8 * 32 * (4 + 2 * 32 + 8 * 32 + 32 * 32 + 128 * 32) + 31 * 32 + (512 * 64 + 1) * 128 + 129 * 64 + 65 * 4,
    ),
    ("cosmoflow", {"depth": 3, "kernel": 3}, (16, 16, 16), 2, (2,), None),
    ("unet", {"width": 8, "depth": 2}, (16, 24, 3), 5, (16, 24, 5), None),
    ("unet", {"width": 4, "depth": 1}, (32, 2), 32, (32, 1), None),
    ("unet", {"width": 4, "depth": 1, "channels": 3}, (8, 8, 8, 1), 2, (8, 8, 8, 3), None),
    ("gpt", {}, (64,), 96, (64, 96), 826_208),
    ("gpt", {"vocabulary": 50, "dropout": 0.1}, (16,), 96, (16, 96), 826_208 - 46 * 128 - 48 * 128),
    ("lstm", {"depth": 2}, (30, 5), 3, (3,), None),
    ("lstm", {"cell": "gru", "each_step": True}, (30,), 2, (30, 2), None),
]


@pytest.mark.parametrize(("name", "options", "shape", "outputs", "out_shape", "parameters"), SIZES)
def test_shapes_and_sizes(name, options, shape, outputs, out_shape, parameters):
    layers = PRESETS.get(name)(**options).layers(shape, outputs)
    graph = build_graph(layers, shape)
    assert graph.output_shape == out_shape
    if parameters is not None:
        assert sum(math.prod(slot.shape) for slot in graph.layout()) == parameters


def test_every_preset_is_tried():
    assert {name for name, *_ in SIZES} == set(PRESETS)


@pytest.mark.parametrize(
    ("name", "options", "shape", "told"),
    [
        ("resnet8", {}, (32,), "(height, width, channels)"),
        ("cosmoflow", {}, (16, 16, 16, 1), "depth = 4"),
        ("cosmoflow", {}, (64, 64), "(depth, height, width, channels)"),
        ("cosmoflow", {}, (64, 64, 1), "for images (height, width, channels)"),
        ("unet", {"depth": 3}, (20, 16, 1), "multiples of 8"),
        ("unet", {}, (16,), "axis of channels"),
        ("gpt", {}, (64, 3), "(length,)"),
        ("gpt", {"heads": 3}, (64,), "a multiple of 3"),
        ("lstm", {}, (2, 3, 4), "(length, features)"),
    ],
)
def test_inputs_that_do_not_fit_are_told(name, options, shape, told):
    with pytest.raises(UserError) as caught:
        PRESETS.get(name)(**options).layers(shape, 2)
    assert told in caught.value.message
    assert str(shape) in caught.value.message or "width" in caught.value.message


@pytest.mark.parametrize(
    "model",
    [{"preset": "gpt", "width": 32, "heads": 2}, {"preset": {"name": "gpt", "width": 32, "heads": 2}}],
    ids=["beside", "nested"],
)
def test_options_stand_beside_the_name_or_in_a_table(model):
    job = Job(data=DATA, model=model)
    assert job.model.preset == PRESETS.get("gpt")(width=32, heads=2)
    assert Job.from_toml(job.to_toml()) == job


def test_options_can_be_set_on_the_command_line():
    job = Job.from_dict({"data": DATA, "model": {"preset": "resnet8"}}, overrides=["model.width=8"])
    assert job.model.preset.width == 8
    job = Job.from_dict({"data": DATA}, overrides=["model.preset=lstm", "model.cell=gru"])
    assert job.model.preset.cell == "gru"


@pytest.mark.parametrize("name", ["resnet8", "unet"])
def test_sync_reaches_every_batch_norm(name):
    shape = (16, 16, 1)
    for sync in (False, True):
        graph = build_graph(PRESETS.get(name)(sync=sync).layers(shape, 3), shape)
        assert {node.built.meets for node in graph.nodes if node.built.state} == {sync}


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"preset": "resnet21"}, "unknown preset 'resnet21'"),
        ({"preset": "resnet8", "widht": 3}, "did you mean 'width'"),
        ({"preset": "resnet8", "width": 0}, "model.width = 0: must be greater than 0"),
        ({"preset": "resnet8", "layer": 0}, "unknown key 'model.layer': known keys: width"),
        ({"preset": "resnet8", "layers": ["relu"]}, "model.layers and model.preset"),
        ({"widht": 3}, "unknown key 'model.widht'"),
    ],
)
def test_mistakes_in_a_job_are_told(model, told):
    with pytest.raises(UserError) as caught:
        Job(data=DATA, model=model)
    assert told in caught.value.message
