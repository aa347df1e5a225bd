"""How a job ends when something goes wrong: one message, a non-zero code on every rank, and nobody left waiting.

- A user's mistake that all ranks agree on is printed by rank 0 and every rank returns code 2.
- Everything else that ends one rank ends the whole job at once: the others may be waiting for it in a collective.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from hpctrain import comm
from hpctrain.comm.environment import launched
from hpctrain.comm.group import Group
from hpctrain.errors import UserError

USER_ERROR = 2
FAULT = 1


def command(function: Callable[[Group], int | None]) -> int:
    """Join the group, run a verb, and return the exit code; ends the job where one rank alone fails."""
    try:
        group = comm.join()
    except UserError as error:
        if launched().rank == 0:
            _print_error(error.message)
        return USER_ERROR
    try:
        return function(group) or 0
    except UserError as error:
        if not error.agreed and group.size > 1:
            end_job(group, error)
        if group.rank == 0:
            _print_error(error.message)
        return USER_ERROR
    except Exception as error:
        end_job(group, error)


def end_script(error: Exception) -> None:
    """End all ranks for an exception that a user's script did not catch; an error that all ranks agree on ends quietly.

    Joins the group where the script has not come so far: only a member can end the others.
    """
    try:
        group = comm.join()
    except UserError as mistake:
        if launched().rank == 0:
            _print_error(mistake.message)
        return
    if isinstance(error, UserError) and error.agreed:
        # Every rank is on its way out with the same error: each ends in good order.
        if group.rank == 0:
            _print_error(error.message)
        return
    end_job(group, error)


def end_job(group: Group, error: BaseException) -> None:
    """Print what ended this rank, with its place, and end all ranks at once (one rank alone: exit)."""
    step = getattr(error, "step", None)
    place = f"[rank {group.rank}/{group.size} {group.hostname}{f' step {step}' if step else ''}]"
    if isinstance(error, UserError):
        text, code = f"{place} error: {error.message}", USER_ERROR
    else:
        text, code = f"{place} this rank failed\n{''.join(traceback.format_exception(error))}", FAULT
    sys.stdout.flush()
    # One write: the lines of two ranks that fail at once must not mix.
    sys.stderr.write(text.rstrip() + "\n")
    sys.stderr.flush()
    if group.size == 1:
        sys.exit(code)
    group.abort(code)


def _print_error(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"hpctrain: error: {message}\n")
    sys.stderr.flush()
