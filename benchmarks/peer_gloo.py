"""PyTorch's gloo as the peer: all-reduces on command.  Not a benchmark itself.

`all_reduce.py` starts one beside each rank with the interpreter of `--peer-python`, writes one JSON object a line to
its standard input and reads one answer a line.  All ranks must be given the same commands.

    {"do": "open", "rank": 0, "size": 2, "host": NAME, "port": 29500}   join the others
    {"do": "time", "bytes": N, "repeats": R}          seconds of one all-reduce (float32, in place), over R of them

It imports nothing of ours, so that the environment of the peer need not have what we need.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed


class Gloo:
    """This process among its peers, with a buffer for each size that it was asked for last."""

    def open(self, rank: int, size: int, host: str, port: int, interface: str | None) -> dict[str, str]:
        """Join the other peers; returns what is measured."""
        torch.set_num_threads(1)
        if interface:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
        self._buffer = torch.zeros(0)
        return {"peer": "gloo"}

    def time(self, bytes: int, repeats: int) -> float:  # noqa: A002 (the command's own word)
        """Return the seconds of one all-reduce, over `repeats` of them after a barrier."""
        if len(self._buffer) != bytes // 4:
            self._buffer = torch.zeros(bytes // 4)
            torch.distributed.all_reduce(self._buffer)
        torch.distributed.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            torch.distributed.all_reduce(self._buffer)
        return (time.perf_counter() - start) / repeats


def main() -> None:
    """Answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not come between the answers
    gloo = Gloo()
    for line in sys.stdin:
        command = json.loads(line)
        answers.write(json.dumps(getattr(gloo, command.pop("do"))(**command)) + "\n")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
