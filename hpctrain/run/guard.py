"""How a job ends when something goes wrong: one message, a non-zero code on every rank, and nobody left waiting.

- A user's mistake that all ranks agree on is printed by rank 0 and every rank returns code 2.
- Everything else that ends one rank ends the whole job at once: the others may be waiting for it in a collective.
  Where several ranks fail at a time, one of them speaks.
- A rank that leaves alone, by `sys.exit` or because its script is over, ends the job too, once others wait for it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from hpctrain import comm
from hpctrain.comm.environment import launched
from hpctrain.comm.group import Group
from hpctrain.errors import UserError

USER_ERROR = 2
FAULT = 1
_LEAVING_S = 2.0  # ranks that leave within this time of each other leave together


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
    except SystemExit as error:
        _leave_early(group, error)
        raise
    except Exception as error:
        end_job(group, error)


@contextmanager
def together(group: Group, what: str) -> Iterator[None]:
    """Have all ranks begin what they do together; for what a user's script calls ("train") on each of them.

    Where one has left its script instead, or leaves it in the block by `sys.exit`, the job ends with a message.
    """
    if group.ending is not None and (gone := group.ending.meet()):
        if group.rank != next(rank for rank in range(group.size) if rank not in gone):
            group.ending.await_end()
        end_job(group, _left(gone, what))
    try:
        yield
    except SystemExit as error:
        _leave_early(comm.join(), error)
        raise


def _leave_early(group: Group, error: SystemExit) -> None:
    """End the job for a rank that leaves in the midst of common work, unless all of them do."""
    if group.ending is not None and not group.ending.leave(_LEAVING_S):
        end_job(group, error)


def _left(gone: list[int], what: str) -> UserError:
    ranks = f"rank {gone[0]} has" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))} have"
    return UserError(
        f"{ranks} left the script, while this one calls {what}: the job ends, for it would wait for ever",
        allowed=f"a script in which every rank calls {what}, as often as the others",
        hint="look for a sys.exit, or a condition such as `if rank == 0`, in front of this call",
    )


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


def end_job(group: Group, error: BaseException) -> NoReturn:
    """Print what ended this rank, with its place, and end all ranks at once (one rank alone: exit).

    Of several ranks that fail at a time one prints.
    """
    if group.ending is not None and not group.ending.speaks():
        group.ending.await_end()
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
