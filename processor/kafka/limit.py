"""Calls that may never come back, with a limit that holds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def within(limit_s: float, call: Callable[[], None]) -> None:
    """Make a call on a thread of its own; what it raises is raised here.

    Raises:
        TimeoutError: it did not come back in time. Its thread is left behind, and whatever it works on with it.
    """
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, where the caller waits
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="within-a-limit", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    if outcome[0] is not None:
        raise outcome[0]
