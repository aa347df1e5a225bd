"""The code of docs/extending.md works: the block is the one in the package, the layer's gradients are right."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpctrain.batch import Batch
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.losses.real import MeanSquaredError
from hpctrain.nn.model import Model

ROOT = Path(__file__).parents[2]
BLOCK, LAYER = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL | re.MULTILINE
)


def test_the_block_on_the_page_is_that_of_the_package():
    assert (ROOT / "hpctrain" / "nn" / "layers" / "squeeze_excite.py").read_text() == BLOCK
    line = '"squeeze_excite": "hpctrain.nn.layers.squeeze_excite:SqueezeExcite",'
    assert line in (ROOT / "hpctrain" / "nn" / "__init__.py").read_text()


@pytest.fixture(scope="module")
def prelu(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "prelu.py"
    path.write_text(LAYER)
    spec = importlib.util.spec_from_file_location("prelu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_layer_on_the_page_has_the_right_gradients(prelu):
    model = Model([Dense(units=3), prelu.PRelu(), Dense(units=2)], (4,), MeanSquaredError(), "real", dtype=np.float64)
    model.initialize()
    random = np.random.default_rng(3)
    for slot in model.layout:
        model.params[slot.offset : slot.stop] += 0.3 * random.normal(size=slot.size)
    inputs, targets = random.normal(size=(5, 4)), random.normal(size=(5, 2)).astype(np.float32)
    batch = Batch(inputs, targets, np.ones(5, np.float32), np.arange(5), 0, 0)
    model.loss_and_grad(batch, beta=0.0)
    gradient, step = model.grads.copy(), 1e-6
    for slot in model.layout:
        for index in range(slot.offset, slot.stop):
            value, losses = model.params[index], []
            for sign in (1, -1):
                model.params[index] = value + sign * step
                losses.append(model.loss_and_grad(batch, beta=0.0))
            model.params[index] = value
            expected = (losses[0] - losses[1]) / (2 * step)
            assert gradient[index] == pytest.approx(expected, rel=1e-6, abs=1e-6), slot.name


SCRIPT = """
import importlib.util, sys
import numpy as np
from hpctrain.nn.layers.dense import Dense
from hpctrain.nn.losses.real import MeanSquaredError
from hpctrain.nn.model import Model

spec = importlib.util.spec_from_file_location("mine", sys.argv[1])
module = importlib.util.module_from_spec(spec)
if sys.argv[2] == "known":
    sys.modules["mine"] = module
spec.loader.exec_module(module)
Model([Dense(units=2), module.PRelu()], (3,), MeanSquaredError(), "real").warm_up()
"""


@pytest.mark.parametrize("how", ["known", "unknown"])
def test_a_layer_of_ones_own_runs_from_the_cache(how, tmp_path):
    """A second process finds the compiled code of the first, or compiles again; from another folder, too."""
    environment = {**os.environ, "HPCTRAIN_CACHE_DIR": str(tmp_path / "cache")}
    for folder in ("one", "one", "other"):
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(LAYER)
        command = [sys.executable, "-c", SCRIPT, str(path), how]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
