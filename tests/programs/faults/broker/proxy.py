"""A TCP proxy in front of a broker that makes the network bad: for all, or for one Kafka API only.

client ─▶ request lane: read a frame ─▶ faults ─▶ queue, each frame with the time it is due ─▶ write ─▶ broker
       ◀─ answer lane:  the same, the other way                                                      ◀─

Frames held while a client gives up are delivered all the same, as by a network: the end of the client's connection
follows them.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from processor.trial.broker.server import HOST
from tests.programs.faults.broker.link import Ends, Link, reset

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType
    from typing import Any

    from tests.programs.faults.broker.fault import Fault, Way

_T = TypeVar("_T")

_CALL_TIMEOUT_S = 120.0
_BACKLOG = 100  # Connections that wait to be accepted, as asyncio's servers have it.


class Proxy:
    """Forwards `port` to `target_port`, both on the loopback address, on a thread of its own. Safe from any thread."""

    def __init__(self, port: int, target_port: int) -> None:
        """Set the ports; the proxy listens from `__enter__` on."""
        self.port = port
        self.target_port = target_port
        self.delay_s = 0.0
        """Delay of every frame, in each direction."""
        self.requests: Counter[int] = Counter()
        """Number of requests received of each API."""
        self._faults: list[Fault] = []
        self._relays: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}", daemon=True)
        self._listener: socket.socket | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    def inject(self, fault: Fault) -> Fault:
        """Inject a fault into the next frames of its kind."""
        self._faults = [*self._faults, fault]
        return fault

    def clear(self) -> None:
        """Remove all injected faults."""
        self._faults = []

    def stall(self) -> None:
        """Hold all frames in both directions; connections are accepted, and no request is answered."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def flow(self) -> None:
        """Deliver the held frames, also those of clients that have given up."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def reset(self) -> int:
        """End every connection with a reset; returns the number of connections."""
        return self._run(self._reset())

    def refuse(self) -> None:
        """End every connection, and accept no new one."""
        self._run(self._refuse())
        self.reset()

    def admit(self) -> None:
        """Accept connections again."""
        self._run(self._listen())

    def take(self, api: int | None, way: Way) -> Fault | None:
        """The fault that befalls a frame, if any. Called on the proxy's thread."""
        return next((fault for fault in self._faults if fault.takes(api, way)), None)

    async def passing(self, due_s: float) -> None:
        """Wait until a frame may pass: it is due, and the network is not stalled."""
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        await self._flowing.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self.admit()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    async def _listen(self) -> None:
        # Neither `start_server` nor `sock_accept`: ended while they accept, they leave that connection open.
        self._listener = socket.create_server((HOST, self.port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _address = listener.accept()
        except OSError:
            return  # The client has gone.
        connection.setblocking(False)
        relay = self._loop.create_task(self._relay(connection))
        self._relays.add(relay)
        # Also for a relay that is cancelled before its first step.
        relay.add_done_callback(partial(self._ended, connection))

    async def _relay(self, connection: socket.socket) -> None:
        client = Ends(*await asyncio.open_connection(sock=connection))
        try:
            broker = Ends(*await asyncio.open_connection(HOST, self.target_port))
            await Link(self, client, broker).run()
        except OSError:
            pass  # No broker listens behind the proxy, and the client sees the same as without the proxy.
        finally:
            reset(client.writer)

    def _ended(self, connection: socket.socket, relay: asyncio.Task[None]) -> None:
        self._relays.discard(relay)
        connection.close()

    async def _reset(self) -> int:
        relays = list(self._relays)
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        await asyncio.sleep(0)  # Aborted transports close their sockets in the loop's next step.
        return len(relays)
