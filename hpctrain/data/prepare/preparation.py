"""`Preparation`: what is done to a job's inputs and targets, with what its steps have learned; the part of a model that
is not the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.data.prepare.base import Step
from hpctrain.data.prepare.chain import BoundStep, Chain
from hpctrain.errors import UserError

_KEYS = {"inputs": "data.prepare", "targets": "data.prepare_target"}


@dataclass(frozen=True)
class Preparation:
    """The steps for inputs and for targets, bound to the shapes of an example as it is stored; None: nothing is done.

    Arrays of what was learned have names such as "inputs.0.mean".
    """

    inputs: Chain | None = None
    targets: Chain | None = None

    @classmethod
    def of(
        cls,
        inputs: Sequence[Step] | None,
        targets: Sequence[Step] | None,
        input_shape: tuple[int, ...],
        target_shape: tuple[int, ...],
        names: Sequence[str] | None = None,
    ) -> Preparation:
        """Bind a job's lists; `names` are those of the inputs' columns.  `UserError` for columns that are not there."""
        return cls(
            Chain(inputs, input_shape, _KEYS["inputs"], names) if inputs else None,
            Chain(targets, target_shape, _KEYS["targets"]) if targets else None,
        )

    def __bool__(self) -> bool:
        return self.inputs is not None or self.targets is not None

    def chains(self) -> Iterator[tuple[str, Chain]]:
        """Yield ("inputs", chain) and ("targets", chain), where there are any."""
        yield from ((role, chain) for role in _KEYS if (chain := getattr(self, role)) is not None)

    def _named(self) -> Iterator[tuple[str, BoundStep]]:
        for role, chain in self.chains():
            yield from ((f"{role}.{number}", bound) for number, bound in enumerate(chain.steps))

    @property
    def is_fitted(self) -> bool:
        """Whether every step has learned what it must."""
        return all(chain.is_fitted for _, chain in self.chains())

    def tensors(self) -> dict[str, np.ndarray]:
        """Return everything that was learned by name, float64: what a checkpoint keeps."""
        return {f"{key}.{name}": a for key, bound in self._named() for name, a in (bound.fitted or {}).items()}

    def put_back(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take what was learned before; `UserError` where something is missing or does not fit."""
        for key, bound in self._named():
            found = {name.rpartition(".")[2]: a for name, a in tensors.items() if name.rpartition(".")[0] == key}
            if not found and bound.fitted is not None:
                continue
            if not found or any(np.shape(a) != (bound.elements.count,) for a in found.values()):
                raise UserError(
                    f"what {bound.where} ({bound.step.name}) has learned is not in the file, or does not fit",
                    found=", ".join(f"{name} {np.shape(a)}" for name, a in tensors.items()) or "nothing",
                    allowed=f"numbers of shape ({bound.elements.count},)",
                )
            bound.fit(found)

    def describe(self) -> str:
        """Return words for a person: "inputs: log, standardise; targets: min_max"."""
        return "; ".join(
            f"{role}: {', '.join(bound.step.name for bound in chain.steps)}" for role, chain in self.chains()
        )
