"""Makes the pictures in docs: what the built-in job and `inspect` show on a terminal, recorded from real runs.

mpirun -n 8 python docs/make_pictures.py              docs/training-run.svg
python docs/make_pictures.py inspect                  docs/inspect.svg
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from rich.console import Console
from rich.progress import Progress

from hpctrain import Job, train
from hpctrain.monitor.console import ConsoleMonitor
from hpctrain.tools.inspect import inspect

DOCS = Path(__file__).resolve().parent
EPOCHS = 12  # fewer than the built-in job's, so that the picture fits on a page


class RecordedMonitor(ConsoleMonitor):
    """Shows the bar once, as it stands at the end: a picture does not move."""

    def _start_bar(self, progress: Progress) -> None:
        pass

    def _stop_bar(self) -> None:
        if self._progress is not None:
            self._draw(self._clock_s())
            self.console.print(self._progress.get_renderable())
            self._progress = None


def recording() -> Console:
    """Return a console that keeps what is printed to it, as a terminal would show it."""
    return Console(
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        width=108,
        highlight=False,
        markup=False,
        emoji=False,
    )


def write_picture(console: Console, path: Path, title: str) -> None:
    """Write what a console has kept; the fonts come from the reader's machine, not from a server."""
    picture = console.export_svg(title=title)
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8")


def training_run() -> None:
    """Train in a temporary folder and write the picture (rank 0)."""
    console = recording()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the picture says runs/digits-001
        job = Job.builtin([f"run.epochs={EPOCHS}", "run.progress=none"])
        monitor = RecordedMonitor("bar", console=console)
        result = train(job, monitors=[monitor])
        os.chdir(DOCS)
    if console.export_text(clear=False):  # rank 0's alone is told of the run
        title = f"mpirun -n {result.summary['world_size']} python -m hpctrain"
        write_picture(console, DOCS / "training-run.svg", title)


def inspected_file() -> None:
    """Write a file of made-up galaxies into a temporary folder, inspect it and write the picture."""
    rng, rows = np.random.default_rng(0), 5000
    console = recording()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        kinds = rng.choice(3, rows, p=[0.6, 0.3, 0.1])
        y, x = np.mgrid[-1:1:32j, -1:1:32j]
        spots = np.exp(-(x**2 + y**2) * (2 + 4 * rng.random((rows, 1, 1)) + kinds[:, None, None]))
        flux = rng.lognormal(2, 1, rows).astype("f4")
        flux[rng.integers(0, rows, 40)] = np.nan
        with h5py.File("galaxies.h5", "w") as file:
            images = (255 * spots[..., None] * [1, 0.8, 0.6]).astype("u1")
            file.create_dataset("images", data=images, chunks=(256, 32, 32, 3), compression="gzip", shuffle=True)
            kind = h5py.enum_dtype({"spiral": 0, "elliptical": 1, "merger": 2}, "u1")
            file.create_dataset("kind", data=kinds, dtype=kind)
            file["flux"] = flux
            file["redshift"] = rng.gamma(2, 0.1, rows).astype("f4")
            file["id"] = np.arange(rows)
        inspect(["galaxies.h5"], console=console)
        os.chdir(DOCS)
    write_picture(console, DOCS / "inspect.svg", "python -m hpctrain inspect galaxies.h5")


if __name__ == "__main__":
    inspected_file() if sys.argv[1:] == ["inspect"] else training_run()
