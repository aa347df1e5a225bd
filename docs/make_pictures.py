"""Makes docs/training-run.svg: what the built-in job shows on a terminal, recorded from a real run.

mpirun -n 8 python docs/make_pictures.py
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from hpctrain import Job, train
from hpctrain.monitor.console import ConsoleMonitor

PICTURE = Path(__file__).resolve().parent / "training-run.svg"
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


def main() -> None:
    """Train in a temporary folder and write the picture (rank 0)."""
    console = Console(
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        width=108,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that the picture says runs/digits-001
        job = Job.builtin([f"run.epochs={EPOCHS}", "run.progress=none"])
        monitor = RecordedMonitor("bar", console=console)
        result = train(job, monitors=[monitor])
        os.chdir(PICTURE.parent)
    if console.export_text(clear=False):  # rank 0's alone is told of the run
        picture = console.export_svg(title=f"mpirun -n {result.summary['world_size']} python -m hpctrain")
        # The fonts come from the reader's machine, not from a server.
        PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
