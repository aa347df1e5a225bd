"""Lengths of training as a person writes them: "200 steps", "1 epoch", "10 min"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.errors import UserError

_UNITS = {
    "step": ("steps", 1.0),
    "epoch": ("epochs", 1.0),
    "s": ("seconds", 1.0),
    "sec": ("seconds", 1.0),
    "second": ("seconds", 1.0),
    "min": ("seconds", 60.0),
    "minute": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
    "hour": ("seconds", 3600.0),
}


@dataclass(frozen=True)
class Duration:
    """A length of training: `value` in `unit`, which is "steps", "epochs" or "seconds"."""

    value: float
    unit: str

    @classmethod
    def parse(cls, text: str | int, where: str, default_unit: str | None = None) -> Duration:
        """Read "200 steps", "1 epoch", "0.5 epochs", "10 min", "2 h"; a bare number takes `default_unit`."""
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", str(text).lower())
        name = match[2] if match else ""
        unit = _UNITS.get(name) or _UNITS.get(name.removesuffix("s")) if name else None
        if match and not name and default_unit:
            unit = (default_unit, 1.0)
        if not match or unit is None:
            raise UserError(
                f"{where} is not a length of training",
                found=repr(text),
                allowed='a number with a unit: "200 steps", "1 epoch", "10 min", "2 h"',
            )
        value = float(match[1]) * unit[1]
        if unit[0] == "steps" and value != int(value):
            raise UserError(f"{where} must be a whole number of steps", found=repr(text))
        return cls(value, unit[0])

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the length in steps (epochs are multiplied out); a time has none and is a ValueError."""
        if self.unit == "steps":
            return int(self.value)
        if self.unit == "epochs":
            return round(self.value * steps_per_epoch)
        raise ValueError("a length in seconds has no number of steps")
