"""The clients by which a gateway publishes: one for each name under which sequences are counted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import structlog

from processor.errors import SowstreamError
from processor.gateway.sessions.requests import BadRequest

if TYPE_CHECKING:
    from processor.wire.ack import Ack

log = structlog.stdlib.get_logger("sowstream.gateway")

OPEN_MAX: Final = 32
"""Named publishers that are open at the same time."""


class Closable(Protocol):
    """The part of a client that is used here."""

    def close(self) -> None:
        """Send what waits, and end."""


Publisher = TypeVar("Publisher", bound=Closable)


class Use(Generic[Publisher]):
    """A publisher with the number of its users: while it has any, it is not closed."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher: Final = publisher
        """The publisher."""
        self.users = 0
        """Commands that are being sent, or have no ack yet."""


class Publishers(Generic[Publisher]):
    """Publishers by name; the one that has been idle longest is closed for a new one. Any thread."""

    def __init__(self, make: Callable[[str], Publisher], *, unnamed: str, open_max: int = OPEN_MAX) -> None:
        """Begin without publishers.

        Args:
            make: opens a publisher.
            unnamed: the name of the publisher of commands without a name, which is always kept open.
            open_max: other publishers that are open at the same time.
        """
        self._make = make
        self._unnamed = unnamed
        self._open_max = open_max
        self._lock = threading.Lock()
        self._by_name: OrderedDict[str, Use[Publisher]] = OrderedDict()

    def send(self, name: str | None, call: Callable[[Publisher], Future[Ack] | None]) -> Future[Ack] | None:
        """Call a function with the publisher of a name, which stays open until the future that it returns is done.

        Raises:
            BadRequest: so many other publishers wait for acks that none can be opened.
        """
        use, idle = self._taken(name or self._unnamed)
        if idle is not None:
            _close(idle)
        future: Future[Ack] | None = None
        try:
            future = call(use.publisher)
        finally:
            if future is None:
                self._release(use)
            else:
                future.add_done_callback(lambda _future: self._release(use))
        return future

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            uses = list(self._by_name.values())
            self._by_name.clear()
        for use in uses:
            _close(use.publisher)

    def _taken(self, name: str) -> tuple[Use[Publisher], Publisher | None]:
        """Begin a use; returns it with a publisher that is to be closed for it."""
        with self._lock:
            idle = None
            use = self._by_name.pop(name, None)
            if use is None:
                others = [one for one in self._by_name if one != self._unnamed]
                if name != self._unnamed and len(others) >= self._open_max:
                    oldest = next((one for one in others if not self._by_name[one].users), None)
                    if oldest is None:
                        raise BadRequest(
                            "unavailable",
                            f"{len(others)} publishers wait for acks, and no more are opened; try again later",
                        )
                    idle = self._by_name.pop(oldest).publisher
                use = Use(self._make(name))
            self._by_name[name] = use
            use.users += 1
            return use, idle

    def _release(self, use: Use[Publisher]) -> None:
        with self._lock:
            use.users -= 1


def _close(publisher: Closable) -> None:
    try:
        publisher.close()
    except SowstreamError as error:
        log.warning("a publisher did not end cleanly", error=str(error))
