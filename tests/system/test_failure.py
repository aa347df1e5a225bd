"""A fault on one rank ends the whole job at once, with that rank's traceback and place, once."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

from datasets import job_for, write_classes, write_job
from launching import mpirun

SCRIPT = """
import time
from pathlib import Path

from hpctrain import Job, train
from hpctrain.comm import join
from hpctrain.monitor.base import Monitor


class Bomb(Monitor):
    collective = True

    def on_step(self, report):
        if join().rank == 2 and report.step == 5:
            Path("raised").write_text(str(time.time()))
            raise RuntimeError("planted for the test")


train(Job.load("job.toml"), monitors=[Bomb()], run_dir="run")
"""


def test_exception_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    write_job(tmp_path / "job.toml", job_for(write_classes(tmp_path / "data.h5"), run={"epochs": 50}))
    (tmp_path / "bomb.py").write_text(SCRIPT)
    done = mpirun(4, "bomb.py", timeout=90, cwd=tmp_path)
    took = time.time() - float((tmp_path / "raised").read_text())
    assert took < 5, f"ended {took:.1f} s after the fault"
    assert done.returncode != 0
    assert done.output.count("RuntimeError: planted for the test") == 1, done.output
    assert done.output.count("Traceback") == 1, done.output
    assert len(re.findall(rf"\[rank 2/4 {re.escape(socket.gethostname())} step 5\]", done.output)) == 1, done.output


def test_exception_in_a_users_model_ends_the_job(tmp_path: Path) -> None:
    """Raised on rank 1 alone, before the first step: the others must not wait for it."""
    (tmp_path / "model.py").write_text(
        "from hpctrain.comm import join\n"
        "from hpctrain.nn.layers.dense import Dense\n\n\n"
        "def build(input_shape, outputs):\n"
        "    if join().rank == 1:\n"
        "        raise ZeroDivisionError('planted in the model')\n"
        "    return [Dense(units=outputs)]\n"
    )
    job = job_for(write_classes(tmp_path / "data.h5"))
    job["model"] = {"python": "model.py:build"}
    write_job(tmp_path / "job.toml", job)
    done = mpirun(3, "-m", "hpctrain", "train", "job.toml", timeout=60, cwd=tmp_path)
    assert done.returncode != 0
    assert done.output.count("ZeroDivisionError: planted in the model") == 1, done.output


def test_a_script_that_ends_on_one_rank_before_it_trains_ends_the_job(tmp_path: Path) -> None:
    """`sys.exit` is no exception that anybody sees, and MPI would let the others wait."""
    write_job(tmp_path / "job.toml", job_for(write_classes(tmp_path / "data.h5")))
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from hpctrain import train\n"
        "from hpctrain.comm import join\n\n"
        "if join().rank == 1:\n"
        "    sys.exit(0)\n"
        "train('job.toml', run_dir='run')\n"
    )
    done = mpirun(3, "script.py", timeout=60, cwd=tmp_path)
    assert done.returncode != 0
    assert done.output.count("rank 1 has left the script, while this one calls train") == 1, done.output
    assert "Traceback" not in done.output


def test_a_rank_that_exits_in_the_midst_of_training_ends_the_job(tmp_path: Path) -> None:
    write_job(tmp_path / "job.toml", job_for(write_classes(tmp_path / "data.h5"), run={"epochs": 50}))
    text = SCRIPT.replace('raise RuntimeError("planted for the test")', "raise SystemExit(3)")
    (tmp_path / "bomb.py").write_text(text)
    done = mpirun(3, "bomb.py", timeout=90, cwd=tmp_path)
    assert time.time() - float((tmp_path / "raised").read_text()) < 10
    assert done.returncode != 0
    assert done.output.count("SystemExit: 3") == 1, done.output
    assert "[rank 2/3" in done.output


def test_ranks_that_fail_together_speak_with_one_voice_and_leave_together_in_silence(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from hpctrain.comm import join\n\n"
        "group = join()\n"
        "group.barrier()\n"
        "if sys.argv[1] == 'fail' and group.rank:\n"
        "    raise ValueError('planted on two ranks')\n"
        "group.barrier() if sys.argv[1] == 'fail' else sys.exit(5)\n"
    )
    done = mpirun(3, "script.py", "fail", timeout=60, cwd=tmp_path)
    assert done.returncode != 0
    assert done.output.count("ValueError: planted on two ranks") == 1, done.output
    assert "[rank 1/3" in done.output
    done = mpirun(3, "script.py", "leave", timeout=60, cwd=tmp_path)
    assert done.returncode == 5
    assert "rank" not in done.output.lower().replace("ranks", ""), done.output


def test_a_script_that_fails_on_one_rank_before_it_trains_ends_the_job(tmp_path: Path) -> None:
    """The others wait inside `train` for a rank that never comes."""
    write_job(tmp_path / "job.toml", job_for(write_classes(tmp_path / "data.h5")))
    (tmp_path / "script.py").write_text(
        "from hpctrain import Job, train\n"
        "from hpctrain.comm.environment import launched\n\n"
        "if launched().rank == 2:\n"
        "    raise ValueError('planted before training')\n"
        "train(Job.load('job.toml'), run_dir='run')\n"
    )
    done = mpirun(3, "script.py", timeout=60, cwd=tmp_path)
    assert done.returncode != 0
    assert done.output.count("ValueError: planted before training") == 1, done.output
    assert "[rank 2/3" in done.output
