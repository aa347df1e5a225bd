"""The project's exceptions, and how a user's mistake is worded.

A `UserError` is a mistake that the person can mend: it is printed once for the job, without a traceback, and every rank
exits with code 2.  Every other exception is a fault of a rank and is shown with its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HpctrainError(Exception):
    """Base of every exception that hpctrain raises on purpose."""


class UserError(HpctrainError):
    """A mistake of the user: what was wrong, the value found, what is allowed, what to do.

    `found`, `allowed` and `hint` are optional and become lines of their own.  `agreed` is true when every rank of the
    job raises this same error, so that rank 0 alone prints it and all exit in good order.
    """

    def __init__(
        self,
        what: str,
        *,
        found: object = None,
        allowed: Iterable[str] | str | None = None,
        hint: str | None = None,
        agreed: bool = False,
    ) -> None:
        lines = [what]
        if found is not None:
            lines.append(f"  found:   {found}")
        if allowed is not None:
            text = allowed if isinstance(allowed, str) else ", ".join(allowed)
            lines.append(f"  allowed: {text}")
        if hint:
            lines.append(f"  to do:   {hint}")
        self.message = "\n".join(lines)
        self.agreed = agreed
        super().__init__(self.message)

    @classmethod
    def from_message(cls, message: str, *, agreed: bool = False) -> UserError:
        """Rebuild an error from the finished text of another rank's."""
        return cls(message, agreed=agreed)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name closest to a misspelled one, or None when none is as alike as `cutoff` (0 to 1).

    A name that is cut short means the one that begins with it: "acc" is accuracy, not auc.
    """
    known = list(known)
    longer = [other for other in known if other.startswith(name)] if len(name) > 2 else []
    close = sorted(longer, key=len) or difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return close[0] if close else None


def unknown_name(kind: str, name: str, known: Iterable[str], where: str = "") -> UserError:
    """Make the error for a name that is not in a family: lists the known ones and suggests the nearest.

    `where` is the dotted key that holds the name, when there is one ("model.layers.1").
    """
    known = sorted(known)
    guess = nearest(name, known)
    return UserError(
        f"unknown {kind} {name!r}" + (f" in {where}" if where else ""),
        allowed=known,
        hint=f"did you mean {guess!r}?" if guess else "use one of these",
    )


def at_step(error: Exception, step: int) -> Exception:
    """Mark an exception with the step (counted from 1) in which it happened, for the message; return it."""
    if not hasattr(error, "step"):
        error.step = step  # type: ignore[attr-defined]
    return error
