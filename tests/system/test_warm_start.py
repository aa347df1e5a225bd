"""Kernels out of the cache: machine code only, without the parts of numba that compile, and the same bits."""

from __future__ import annotations

from pathlib import Path

from datasets import small_job
from launching import mpirun

SCRIPT = """\
import sys
import hpctrain
hpctrain.train(sys.argv[1], run_dir=sys.argv[2])
print("compiler parts:", sorted({"numba.np.linalg", "numba.np.arraymath", "numba.typed.typeddict"} & set(sys.modules)))
"""


# Whether products and sums are contracted differs from copy to copy of a function when it is optimised elsewhere: in a
# layer norm that was just compiled, and called, the linker once took another copy than the one that is cached.
NORM = """\
import hashlib
import numpy as np
from hpctrain.nn.layers.normalisation import LayerNorm
from hpctrain.nn.losses import MeanSquaredError
from hpctrain.nn.model import Model
model = Model([LayerNorm()], (24, 32), MeanSquaredError(), "real")
model.initialize()
inputs, outputs = np.random.default_rng(0).normal(size=(64, 24, 32)).astype("f4"), np.empty((64, 24, 32), "f4")
model.predict(inputs, outputs)
print(hashlib.sha256(outputs).hexdigest())
"""


def test_code_just_compiled_and_the_same_out_of_the_cache_give_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    cold, warm = (mpirun(0, "norm.py", cwd=tmp_path, env={"HPCTRAIN_CACHE_DIR": str(tmp_path)}) for _ in range(2))
    assert cold.returncode == warm.returncode == 0, cold.output
    assert (tmp_path / "hpctrain-kernels").is_dir()
    assert cold.stdout == warm.stdout


def test_a_warm_run_imports_nothing_that_compiles(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    job = small_job(tmp_path)
    outputs = []
    for name in ("first", "second"):
        done = mpirun(0, "script.py", job, tmp_path / name, cwd=tmp_path)
        assert done.returncode == 0, done.output
        outputs.append(done.stdout)
    assert "compiler parts: []" in outputs[1]
