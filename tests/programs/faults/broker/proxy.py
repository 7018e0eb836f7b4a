"""A TCP proxy in front of a broker that makes the network bad: for all, or for one Kafka API only.

client ─▶ request lane: read a frame ─▶ faults ─▶ queue, each frame with the time it is due ─▶ write ─▶ broker
       ◀─ answer lane:  the same, the other way                                                      ◀─

Frames held while a client gives up are delivered all the same, as by a network: the end of the client's connection
follows them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Self, TypeVar

from processor.tools.broker.server import HOST
from tests.programs.faults.broker.link import Ends, Link, reset

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType
    from typing import Any

    from tests.programs.faults.broker.fault import Fault, Way

_T = TypeVar("_T")

_CALL_TIMEOUT_S = 10.0


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
        self._links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}", daemon=True)
        self._server: asyncio.Server | None = None
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
        self._run(self._close_server())
        self.reset()

    def admit(self) -> None:
        """Accept connections again."""
        self._run(self._open_server())

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
        self._run(self._close_server())
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    async def _open_server(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port, reuse_address=True)

    async def _close_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _reset(self) -> int:
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    async def _end(self) -> None:
        """End all connections, and wait for their tasks."""
        await self._reset()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # The last step of the connections' own tasks.

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker = await asyncio.open_connection(HOST, self.target_port)
        except (OSError, asyncio.CancelledError):
            reset(writer)  # No broker listens behind the proxy, and the client sees the same as without the proxy.
            return
        link = Link(self, Ends(reader, writer), Ends(*broker))
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
