"""A mapped file that becomes shorter: the process that looks at what is gone says so, in place of dying silently."""

import os
import subprocess
import sys

SCRIPT = """\
import os
import threading
import numpy as np
from hpctrain.kernels import lost_pages

lost_pages.watch()
pages = np.memmap("data", np.uint8, "r")
os.truncate("data", 4096)
thread = threading.Thread(target=lambda: pages[-1])
thread.start()
thread.join()
print("still here")
"""


def test_what_is_gone_is_told(tmp_path):
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: a data file has become shorter while it was read")
    assert len(done.stderr.splitlines()) == 3
