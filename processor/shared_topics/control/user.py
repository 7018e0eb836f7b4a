"""The user of this process, for records of the control topic that have a user."""

from __future__ import annotations

import contextlib
import getpass
import socket


def who() -> str:
    """Return the user of this process: `user@host`."""
    user = "somebody"
    with contextlib.suppress(KeyError, OSError):  # A container's user may have no name.
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"
