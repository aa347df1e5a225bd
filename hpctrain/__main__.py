"""`python -m hpctrain`."""

import os
import signal
from types import FrameType


def leave_at_once(number: int, frame: FrameType | None) -> None:
    """End this process on Ctrl-C as long as there is nothing to save, without waiting for what is being loaded.

    A run that has begun takes the signal over (`training/stop.py`).
    """
    os._exit(128 + number)


if __name__ == "__main__":
    # Before the imports: they take seconds where many ranks share a core.
    signal.signal(signal.SIGINT, leave_at_once)

    from hpctrain.cli import main

    main()
