"""Ports that remain free while no process listens on them."""

from __future__ import annotations

import random
import socket

from processor.trial.broker.server import HOST

_FIRST, _LAST = 20_000, 30_000
"""Ports below the range that the kernel gives to connections: such a connection may take the port of a broker that is
away, and a client that tries a closed port again and again may even be connected with itself.
"""

_RANDOM = random.SystemRandom()
"""Without a seed: two processes whose tests set the same one would choose the same ports."""


def quiet_port() -> int:
    """A loopback port that was free a moment ago, and that the kernel gives to no connection."""
    while True:
        port = _RANDOM.randrange(_FIRST, _LAST)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
