"""One client's connection through a proxy: two lanes of Kafka's frames, and the faults that affect them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from tests.programs.faults.broker.fault import Act, Way

if TYPE_CHECKING:
    from tests.programs.faults.broker.proxy import Proxy

_FRAMES_MAX = 1000  # Frames in a lane's queue.
_LINGER_S = 2.0  # A delayed request is processed before its connection's end is noticed.


class Ends(NamedTuple):
    """One side of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class _Held(NamedTuple):
    """A frame in transit."""

    due_s: float
    """Earliest time of delivery, on the monotonic clock."""
    frame: bytes | None
    """The bytes to write; None: the end of the connection."""


class Link:
    """The connection between a client and a broker. Lives on the proxy's thread."""

    def __init__(self, proxy: Proxy, client: Ends, broker: Ends) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        # The API of each outstanding request, by correlation id: an answer does not carry it.
        self._apis: dict[int, int] = {}

    async def run(self) -> None:
        """Forward frames until both lanes have ended."""
        try:
            await asyncio.gather(
                self._lane(Way.REQUEST, self._client.reader, self._broker.writer),
                self._lane(Way.ANSWER, self._broker.reader, self._client.writer),
            )
        finally:
            self.reset()

    def reset(self) -> None:
        """End both sides at once; frames in transit are lost."""
        reset(self._client.writer)
        reset(self._broker.writer)

    async def _lane(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[_Held] = asyncio.Queue(_FRAMES_MAX)
        await asyncio.gather(self._read(way, reader, queue), self._write(queue, writer))

    async def _read(self, way: Way, reader: asyncio.StreamReader, queue: asyncio.Queue[_Held]) -> None:
        """Read frames, and decide the fault of each."""
        extra_s = 0.0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size, "big"))
                fault = self._proxy.take(self._api(way, frame), way)
                if fault is not None:
                    if fault.act is Act.RESET:
                        self.reset()
                        break
                    if fault.act is Act.LOSE:
                        continue
                    extra_s = fault.delay_s
                    if fault.act is Act.LATE:
                        reset(self._client.writer)
                await queue.put(_Held(time.monotonic() + self._proxy.delay_s + extra_s, frame))
                if fault is not None and fault.act is Act.LATE:
                    extra_s += _LINGER_S
                    break
                extra_s = 0.0  # Frames behind a delayed one wait for it in the queue.
        await queue.put(_Held(time.monotonic() + self._proxy.delay_s + extra_s, None))

    def _api(self, way: Way, frame: bytes) -> int | None:
        """The API of a frame: a request is int32 size, int16 API, int16 version, int32 id; an answer carries no API."""
        if way is Way.REQUEST:
            api, _version, correlation = struct.unpack_from(">hhi", frame, 4)
            self._apis[correlation] = api
            self._proxy.requests[api] += 1
            return int(api)
        return self._apis.pop(struct.unpack_from(">i", frame, 4)[0], None)

    async def _write(self, queue: asyncio.Queue[_Held], writer: asyncio.StreamWriter) -> None:
        """Forward frames when they are due; frames for a closed connection are dropped."""
        while True:
            due_s, frame = await queue.get()
            await self._proxy.passing(due_s)
            if frame is None:
                writer.close()
                return
            if not writer.is_closing():
                with contextlib.suppress(ConnectionError):
                    writer.write(frame)
                    await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side sees a reset, not an orderly end."""
    if (connection := writer.get_extra_info("socket")) is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
