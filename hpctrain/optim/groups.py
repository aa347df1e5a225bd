"""Parameter groups: factors of the learning rate and of weight decay for tensors chosen by name, and what is frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Protocol

from pydantic import Field

from hpctrain.errors import UserError, nearest
from hpctrain.optim.table import Range, UpdateTable
from hpctrain.options import Part


class ParameterGroup(Part):
    """Tensors whose names fit a glob, and what holds for them; later groups count before earlier ones, key by key.

    pattern              glob on tensor names: "dense0.*", "*.bias"; `*` any text, `?` one character, `[ab]` one of them
    lr_factor            multiplies the learning rate, 0 or more; default: 1
    weight_decay_factor  multiplies the weight decay, 0 or more; default: 1, and 0 for biases and normalisation scales
                         (see `Optimizer.decay_all`)
    frozen               the tensors keep their values: no update, no state, no part in the norm for clipping
    """

    pattern: str = Field(min_length=1)
    lr_factor: float | None = Field(None, ge=0)
    weight_decay_factor: float | None = Field(None, ge=0)
    frozen: bool | None = None


class NamedRange(Range, Protocol):
    """A named tensor's place in a flat buffer."""

    name: str


def update_table(
    slots: Iterable[NamedRange],
    decays: Mapping[str, bool],
    groups: Sequence[ParameterGroup] = (),
    decay_all: bool = False,
) -> UpdateTable:
    """Return the factors of every tensor of a model.

    slots      the tensors in the order of the flat buffer (`nn.flat.Layout`)
    decays     tensor name -> whether weight decay applies to it by default; what is not named decays
    groups     see `ParameterGroup`; a pattern that fits no name, or nothing left to train, is a `UserError`
    decay_all  weight decay applies by default to all
    """
    slots = tuple(slots)
    names = [slot.name for slot in slots]
    lr = dict.fromkeys(names, 1.0)
    decay = {name: 1.0 if decay_all or decays.get(name, True) else 0.0 for name in names}
    frozen = dict.fromkeys(names, False)
    for index, group in enumerate(groups):
        for name in _matching(group.pattern, names, f"optimizer.groups.{index}.pattern"):
            for value, factors in ((group.lr_factor, lr), (group.weight_decay_factor, decay), (group.frozen, frozen)):
                if value is not None:
                    factors[name] = value
    if names and all(frozen.values()):
        raise UserError(
            "optimizer.groups freezes every tensor: nothing is left to train",
            found=", ".join(group.pattern for group in groups if group.frozen),
            hint='let a later group take some out again: {pattern = "...", frozen = false}',
        )
    trained = [not frozen[name] for name in names]
    return UpdateTable.from_slots(slots, list(lr.values()), list(decay.values()), trained)


def _matching(pattern: str, names: Sequence[str], where: str) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        guess = nearest(pattern, names)
        raise UserError(
            f"{where} fits no tensor of the model",
            found=repr(pattern),
            allowed=f"a glob on these names: {', '.join(names)}",
            hint=f"did you mean {guess!r}?" if guess else None,
        )
    return found
