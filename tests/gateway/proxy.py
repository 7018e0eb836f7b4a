"""A proxy between a client and a gateway, on which connections are refused, cut, or dead without a word."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class FaultyProxy:
    """Forwards bytes to a gateway; the requests may come below a path, as behind a proxy of a web site.

    With `idle_s` it ends a connection on which the gateway has sent nothing for so long, as nginx does after 60 s.
    """

    def __init__(self, port, *, path="", idle_s=None):
        self.target = port
        """The port of the gateway."""
        self.mode = "pass"
        """Of new connections: `pass`, `refuse` (closed at once), `silent` (accepted, and dead), `503`."""
        self.requests = []
        """The request lines of the connections."""
        self._path = path.encode()
        self._idle_s = idle_s
        self._dead = set()
        self._writers = set()
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def cut(self):
        """End all connections."""
        self._call(lambda: [writer.transport.abort() for writer in self._writers])

    def freeze(self):
        """Let all connections be dead without a word, as when a laptop was suspended."""
        self._call(lambda: self._dead.update(self._writers))

    def close(self):
        """End it."""
        self.cut()
        self._call(self._stop.set)
        self._thread.join()

    def _call(self, call):
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (call(), done.set()))
        done.wait()

    def _run(self, started):
        async def main():
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            self.address = f"127.0.0.1:{self.port}"
            started.set()
            await self._stop.wait()
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # An aborted transport closes its socket in the next turn of the loop.

        self._loop.run_until_complete(main())
        self._loop.close()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._forward(reader, writer)
        finally:
            self._writers.discard(writer)
            self._dead.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader, writer):
        if self.mode == "refuse":
            return
        if self.mode == "silent":
            self._dead.add(writer)
            while await reader.read(65536):
                pass
            return
        line = await reader.readline()
        self.requests.append(line.decode())
        if self.mode == "503":
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        method, _, rest = line.partition(b" ")
        upstream, sink = await asyncio.open_connection("127.0.0.1", self.target)
        sink.write(method + b" " + rest.removeprefix(self._path))
        ways = [self._pump(reader, sink, writer, None), self._pump(upstream, writer, writer, self._idle_s)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if writer in self._dead:
                await asyncio.wait(tasks[:1])  # The client alone ends it: the gateway's end does not arrive.
        finally:
            for task in tasks:
                task.cancel()
            sink.transport.abort()

    async def _pump(self, reader, writer, client, idle_s):
        with suppress(OSError, TimeoutError):
            while data := await asyncio.wait_for(reader.read(65536), idle_s):
                if client not in self._dead:
                    writer.write(data)
                    await writer.drain()
