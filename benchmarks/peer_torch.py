"""PyTorch as the peer: trains the benchmarks' models on command.  Not a benchmark itself.

A benchmark starts it with the interpreter of `--peer-python`, writes one JSON object a line to its standard input and
reads one answer a line.  So each side has a process, a BLAS and memory of its own, and works while the other waits.

    {"do": "open", "model": NAME, "folder": DIR, "threads": 1, "ddp": null}  reads DIR/data.npz, writes DIR/weights.npz
    {"do": "losses", "steps": 20}       the losses of the first steps from the initial weights, eagerly
    {"do": "exact", "steps": 20}        the same in float64
    {"do": "trial", "mode": MODE}       seconds a step of "eager", "compile", "channels_last" or "compile_channels_last"
    {"do": "use", "mode": MODE}         what the next timings run
    {"do": "time", "steps": N}          seconds a step, by the wall clock and of CPU time
    {"do": "memory"}                    bytes of resident memory: after the imports, and at the peak

The models and the optimizer (SGD, momentum 0.9, fused) are fp32.  With "ddp" = {"rank", "size", "port"} the model is
wrapped in DistributedDataParallel over gloo, and all ranks must be given the same commands.  It imports nothing of
ours, so that the environment of the peer need not have what we need.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LEARNING_RATE, MOMENTUM = 1e-3, 0.9
COMPILED = ("compile", "compile_channels_last")


def resident(entry: str) -> int:
    """Return an entry of /proc/self/status in bytes: "VmRSS:", resident memory now, or "VmHWM:", at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(entry))


IMPORTS_BYTES = resident("VmRSS:")


def mlp(*widths: int) -> nn.Module:
    """Dense layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)), with a 1x1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(depth: int) -> nn.Module:
    """ResNet-(6n + 2) for 3 x 32 x 32 images (He et al. 2016, section 4.2)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for after, stride in ((16, 1), (32, 2), (64, 2)):
        for index in range((depth - 2) // 6):
            layers.append(Block(before, after, stride if index == 0 else 1))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class GptBlock(nn.Module):
    """Causal attention and a two-layer network, each on a layer norm of the running sum (pre-norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A small GPT (Radford et al. 2019): token and position embedding, blocks, layer norm, one output a token."""

    def __init__(self, depth: int = 4, width: int = 128, heads: int = 4, length: int = 64, tokens: int = 96) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.token(x) + self.position[: x.shape[1]])))


def cnn_lenet() -> nn.Module:
    """Convolution 32, pool, convolution 64, pool, dense 128."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def cnn_mnist() -> nn.Module:
    """The network of PyTorch's MNIST example without dropout: convolutions 32 and 64, pool, dense 128."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 144, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def cnn3d() -> nn.Module:
    """Two 3-D convolutions with pools and two dense layers, as in CosmoFlow (Mathuriya et al. 2018)."""
    return nn.Sequential(
        *(nn.Conv3d(4, 16, 3, padding=1), nn.LeakyReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(16, 32, 3, padding=1), nn.LeakyReLU(), nn.MaxPool3d(2)),
        *(nn.Flatten(), nn.Linear(32 * 512, 64), nn.LeakyReLU(), nn.Linear(64, 4)),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp-small": lambda: mlp(64, 128, 64, 10),
    "mlp-mnist": lambda: mlp(784, 512, 256, 10),
    "mlp-higgs": lambda: mlp(28, 300, 300, 300, 1),
    "mlp-wide": lambda: mlp(784, 2048, 2048, 10),
    "cnn-mnist": cnn_mnist,
    "cnn-lenet": cnn_lenet,
    "resnet8": lambda: resnet(8),
    "resnet20": lambda: resnet(20),
    "cnn3d": cnn3d,
    "gpt-tiny": Gpt,
}


def loss_of(kind: str, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss; `kind` is "class", "binary", "real" or "tokens"."""
    if kind == "binary":
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets)
    if kind == "real":
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class Peer:
    """One model with its data and optimizer."""

    def __init__(self, model: str, folder: str, threads: int = 1, ddp: dict[str, int] | None = None) -> None:
        torch.set_num_threads(threads)
        if ddp and not torch.distributed.is_initialized():
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ddp["port"]), GLOO_SOCKET_IFNAME="lo")
            torch.distributed.init_process_group("gloo", rank=ddp["rank"], world_size=ddp["size"])
        self.name, self.ddp = model, ddp
        data = np.load(Path(folder) / "data.npz")
        self.kind = str(data["kind"])
        # Every batch is a tensor of its own: a loader would hand them over so.
        self.data = [
            (torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy()))
            for inputs, targets in zip(data["inputs"], data["targets"], strict=True)
        ]
        parameters = {name: value.detach().numpy() for name, value in self._model().named_parameters()}
        np.savez(Path(folder) / "weights.npz", **parameters)
        del parameters
        self.ways: dict[str, tuple[Any, ...]] = {}  # a compiled model is kept from its trial to its timing
        self.use("eager")

    def _model(self) -> nn.Module:
        """Return the model with its initial weights, which are the same each time and in every process."""
        torch.manual_seed(0)
        return MODELS[self.name]()

    def use(self, mode: str, *, afresh: bool = False) -> None:
        """Run the model in this mode from now on; `afresh`: from the initial weights."""
        if afresh or mode not in self.ways:
            self.ways[mode] = self._set_up(mode)
        self.batches, self.optimizer, self.loss = self.ways[mode]

    def _set_up(self, mode: str, real: torch.dtype = torch.float32) -> tuple[Any, ...]:
        model, batches = self._model().to(real), self.data
        if mode.endswith("channels_last"):
            layout = torch.channels_last if batches[0][0].dim() == 4 else torch.channels_last_3d
            model = model.to(memory_format=layout)
            batches = [(inputs.contiguous(memory_format=layout), targets) for inputs, targets in batches]
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
        if self.ddp:
            model = nn.parallel.DistributedDataParallel(model)

        def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return loss_of(self.kind, model(inputs), targets)

        return batches, optimizer, torch.compile(loss) if mode in COMPILED else loss

    def step(self, index: int) -> torch.Tensor:
        """Make one update and return the loss before it."""
        value = self.loss(*self.batches[index % len(self.batches)])
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value

    def losses(self, steps: int) -> list[float]:
        """Return the losses of the first steps from the initial weights."""
        self.use("eager", afresh=True)
        return [self.step(index).item() for index in range(steps)]

    def exact(self, steps: int) -> list[float]:
        """Return the losses of the first steps from the initial weights, in float64."""
        ways = self.batches, self.optimizer, self.loss
        self.batches, self.optimizer, self.loss = self._set_up("eager", torch.float64)

        def wide(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.double() if tensor.is_floating_point() else tensor

        self.batches = [(wide(inputs), wide(targets)) for inputs, targets in self.batches]
        found = [self.step(index).item() for index in range(steps)]
        self.batches, self.optimizer, self.loss = ways
        return found

    def time(self, steps: int) -> dict[str, float]:
        """Return the seconds of a step, over `steps` of them."""
        wall, cpu = time.perf_counter(), time.process_time()
        for index in range(steps):
            self.step(index)
        return {"wall_s": (time.perf_counter() - wall) / steps, "cpu_s": (time.process_time() - cpu) / steps}

    def memory(self) -> dict[str, int]:
        """Return the resident memory in bytes, after the imports and at its peak."""
        return {"imports": IMPORTS_BYTES, "peak": resident("VmHWM:")}

    def trial(self, mode: str) -> dict[str, Any]:
        """Return the median CPU seconds of a step in one mode, after a few to warm up, or why it cannot run."""
        try:
            self.use(mode)
            for index in range(3):
                self.step(index)
            once = self.time(2)["wall_s"]
            steps = max(1, min(200, int(0.15 / once)))
            if self.ddp:  # every rank must take as many
                steps = 3
            return {"seconds": statistics.median(self.time(steps)["cpu_s"] for _ in range(5))}
        except Exception as error:  # a mode that this build cannot run (no C++ compiler, say) is out of the trial
            if self.ddp:
                raise
            return {"seconds": None, "why": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Answer commands until the input ends."""
    # What compilers and libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer: Peer | None = None
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("do")
        if verb == "open":
            peer = None  # gives the memory back before the next model takes its own
            torch.compiler.reset()
            peer = Peer(**command)
            answer: Any = {"peer": f"PyTorch {torch.__version__}", "image": len(peer.data[0][0].shape) >= 4}
        else:
            answer = getattr(peer, verb)(**command)
        answers.write(json.dumps(answer) + "\n")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
