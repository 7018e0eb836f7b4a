"""Waits for a started broker until it takes topics and transactions, or says why it never will."""

from __future__ import annotations

import time
from collections.abc import Callable

from processor.errors import BrokerUnavailable
from processor.tools.broker.probe import is_ready
from processor.tools.broker.server import HOST, Server

_LOOK_S = 0.05


def await_ready(server: Server, *, has_ended: Callable[[], bool], timeout_s: float) -> None:
    """Return as soon as the broker is ready.

    Raises:
        BrokerUnavailable: its process ended, or it is not ready after `timeout_s`; with the end of its logs.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(HOST, server.port):
        if has_ended():
            raise BrokerUnavailable(f"the embedded broker ended while it started:\n{_evidence(server)}")
        if time.monotonic() > deadline_s:
            raise BrokerUnavailable(f"the embedded broker is not ready after {timeout_s:.0f} s:\n{_evidence(server)}")
        time.sleep(_LOOK_S)


def _evidence(server: Server) -> str:
    words = server.last_words()
    return words or f"  it logged no error; its heap was {server.heap}"
