"""A run whose kernels are in the cache loads machine code only: none of the parts of numba that compile."""

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


def test_a_warm_run_imports_nothing_that_compiles(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    job = small_job(tmp_path)
    outputs = []
    for name in ("first", "second"):
        done = mpirun(0, "script.py", job, tmp_path / name, cwd=tmp_path)
        assert done.returncode == 0, done.output
        outputs.append(done.stdout)
    assert "compiler parts: []" in outputs[1]
