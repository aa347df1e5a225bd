"""Editing a kernel changes the result of the next run, however warm the cache of compiled kernels is."""

from __future__ import annotations

import shutil
from pathlib import Path

from datasets import small_job, summary
from launching import ROOT, hpctrain

UPDATE = "p[i] -= rate *"
FLIPPED = "p[i] += rate *"


def test_an_edited_kernel_is_compiled_again(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "hpctrain", tmp_path / "hpctrain", ignore=shutil.ignore_patterns("__pycache__"))
    job = small_job(tmp_path, optimizer={"name": "sgd", "lr": 0.01})
    env = {"PYTHONPATH": str(tmp_path), "HPCTRAIN_CACHE_DIR": str(tmp_path / "cache")}

    def trained(name: str) -> dict:
        done = hpctrain(1, "train", job, "--run-dir", tmp_path / name, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.output
        return summary(tmp_path / name)

    kernels = tmp_path / "hpctrain" / "kernels" / "optimizers.py"
    source = kernels.read_text()
    assert UPDATE in source, "the update that this test flips has been written in another way"

    before = trained("before")
    kernels.write_text(source.replace(UPDATE, FLIPPED))
    edited = trained("edited")
    kernels.write_text(source)
    restored = trained("restored")

    assert edited["train_loss"] > before["train_loss"], "going uphill"
    assert edited["weights_sha256"] != before["weights_sha256"]
    assert restored["weights_sha256"] == before["weights_sha256"]
    assert restored["compile_s"] < 0.5 * before["compile_s"], "what was compiled before is loaded"
