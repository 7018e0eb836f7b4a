"""Runs gateways: one process, or several that share the port."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import resource
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn

from processor.errors import ConfigurationError, SowstreamError, Stop
from processor.gateway.application import REQUESTS_MAX, Application
from processor.gateway.gateway import Gateway
from processor.gateway.uvicorn_http import BURST_MAX, GuardedHttp, Handshake
from processor.gateway.uvicorn_websocket import AbortableWebSocket

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

    from processor.config import Config
    from processor.config.gateway import TlsConfig

log = structlog.stdlib.get_logger("sowstream.gateway")

_BACKLOG: Final = 4096
_STOP_TIMEOUT_S: Final = 10
_CUT_OFF_S: Final = 8.0
"""Longest time that clients have for the end of their answers when the gateway ends; then they are cut off."""
_LOOK_S: Final = 0.1
"""Time between two looks whether they are gone."""
_SWITCH_INTERVAL_S: Final = 0.001
"""Longest time that a thread computes while another one wants to."""
_FULL_COLLECTION_FROM: Final = 1_000
"""Collections of younger objects before one of all objects: about seven million new objects that stay."""
_OTHER_FILES: Final = 500
"""Files of views, of Kafka's clients and of the process itself."""
_REVIVE_INTERVAL_S: Final = 1.0
_ACCEPTED_MAX: Final = 100
"""Connections that are accepted in one turn of the event loop."""
_ACCEPT_AGAIN_S: Final = 1.0
_GONE_IDLE_TIMEOUTS: Final = 2
"""A peer whose machine acknowledges nothing for so many `idle_timeout_s` is gone; a slow one is closed earlier."""


def bound_socket(config: Config, *, is_shared: bool) -> socket.socket:
    """A socket that listens at the address of the settings.

    Raises:
        Stop: the address is in use, or not of this machine.
    """
    host, port = config.gateway.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Accepted sockets inherit it: a peer that is gone without a word is found.
            timeout_ms = int(_GONE_IDLE_TIMEOUTS * config.gateway.limits.idle_timeout_s * 1000)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise Stop(f"the gateway cannot listen at {config.gateway.listen}: {error.strerror}") from None
    return listening


def tune_interpreter() -> None:
    """Keep Python's collector and other threads from holding up the event loop.

    The collector looks at all objects hardly ever: past updates and orders are many, and it pauses all. A connection
    that has ended leaves no cycle (`MemoryKeeper`). A thread that computes gives way after a millisecond: the event
    loop gives its turn away with each call of a socket, and would wait 5 ms to have it back.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION_FROM)


def _raise_file_limit(connections: int) -> None:
    """Allow the process as many files as the system does: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    needed = connections + REQUESTS_MAX + BURST_MAX + _OTHER_FILES
    if soft not in (resource.RLIM_INFINITY, -1) and soft < needed:
        log.warning("limits.connections needs more files than the system allows", allowed=soft, needed=needed)


class GuardedServer(uvicorn.Server):
    """uvicorn's server, whose connections count and have their time from the begin of a TLS handshake on."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections."""
        if self.config.ssl is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for listening in sockets or ():
            listening.setblocking(False)
            self._listen(listening)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end."""
        for listening in sockets or ():
            asyncio.get_running_loop().remove_reader(listening)
        await super().shutdown(sockets)

    def _listen(self, listening: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        assert self.config.ssl is not None
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_MAX):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Most likely there are too many open files; the connections wait in the backlog.
                log.error("no connection is accepted for a second", error=error.strerror)
                loop.remove_reader(listening)
                loop.call_later(_ACCEPT_AGAIN_S, self._listen, listening)
                return
            connection.setblocking(False)
            Handshake(connection, self._protocol, self.config.ssl)

    def _protocol(self) -> asyncio.Protocol:
        return GuardedHttp(self.config, self.server_state, self.lifespan.state)


async def serve(gateway: Gateway, listening: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Args:
        gateway: the gateway, not started.
        listening: the socket.
        stop: ends it.
    """
    tls = gateway.settings.tls
    server = GuardedServer(
        uvicorn.Config(
            Application(gateway),
            http=GuardedHttp,
            ws=AbortableWebSocket,
            ws_max_size=gateway.limits.message_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=20,
            ws_ping_timeout=40,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            ssl_certfile=None if tls is None else str(tls.certificate),
            ssl_keyfile=None if tls is None else str(tls.key),
        )
    )
    if tls is not None:
        gateway.watch("certificate", tls.certificate, tls.key, load=lambda: _read_certificate(server.config, tls))
    running = asyncio.create_task(_served(server, listening))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        for session in list(gateway.sessions):
            session.close(1012, "the gateway is restarting")
        await _ended(server, running)
        if not server.started:
            raise Stop("the gateway could not start; the log has the reason")
    finally:
        listening.close()
        stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stopping


async def _read_certificate(config: uvicorn.Config, tls: TlsConfig) -> None:
    """Read the certificate and its key again, on a thread, for connections to come.

    Raises:
        ConfigurationError: they cannot be used; the former ones count.
    """
    try:
        # A context of its own: one that is in use would keep the former certificate if its key is of another type.
        config.ssl = await asyncio.to_thread(_tls_context, config, tls)
    except OSError as error:
        raise ConfigurationError(f"gateway.tls: {tls.certificate}, {tls.key}: {error}") from None


def _tls_context(config: uvicorn.Config, tls: TlsConfig) -> ssl.SSLContext:
    """A context as uvicorn makes it, of the certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(config.ssl_ciphers or "DEFAULT")
    context.load_cert_chain(tls.certificate, tls.key, "")  # Without a password: nobody is asked for one.
    return context


async def _served(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve; an application that cannot start ends the server, which would end the interpreter."""
    with contextlib.suppress(SystemExit):
        await server.serve(sockets=[listening])


async def _ended(server: uvicorn.Server, running: asyncio.Task[None]) -> None:
    """Wait for the end of a server, which leaves no connection: a client that takes nothing would hold one open."""
    await asyncio.wait((running,), timeout=_CUT_OFF_S)
    connections: Any = server.server_state.connections
    while connections or not running.done():
        for connection in list(connections):
            connection.transport.abort()
        await asyncio.wait((running,), timeout=_LOOK_S)
    await asyncio.sleep(0)  # An aborted transport closes its socket in the next turn of the loop.
    await running


def run_gateway(config: Config, stop: threading.Event, *, processes: int = 1) -> int:
    """Run gateways until `stop` is set; returns the exit code.

    Args:
        config: the settings.
        stop: ends them.
        processes: how many processes share the port; each has a view of its own.

    Raises:
        SowstreamError: it cannot start.
    """
    listening = bound_socket(config, is_shared=processes > 1)
    _raise_file_limit(config.gateway.limits.connections)
    scheme = "http" if config.gateway.tls is None else "https"
    log.info("the gateway listens", address=f"{scheme}://{config.gateway.listen}", processes=processes)
    children = _Children(config, processes - 1)
    try:
        _run(config, listening, stop, number=0, look=children.revive)
    finally:
        children.stop()
    return 0


class _Children:
    """The other processes of a gateway; one that ends is started again."""

    def __init__(self, config: Config, count: int) -> None:
        self._config = config
        self._spawning = multiprocessing.get_context("spawn")
        self._processes = {number: self._started(number) for number in range(1, count + 1)}
        self._revived_s = 0.0

    def revive(self) -> bool:
        """Start those that have ended again, at most one each second. Returns False: the main process goes on."""
        for number, child in self._processes.items():
            if child.exitcode is not None and time.monotonic() - self._revived_s > _REVIVE_INTERVAL_S:
                self._revived_s = time.monotonic()
                log.error("a process of the gateway ended and is started again", number=number, code=child.exitcode)
                self._processes[number] = self._started(number)
                break
        return False

    def stop(self) -> None:
        """End them."""
        for child in self._processes.values():
            child.terminate()
        for child in self._processes.values():
            child.join(_STOP_TIMEOUT_S)
            if child.is_alive():
                child.kill()
                child.join()

    def _started(self, number: int) -> BaseProcess:
        child = self._spawning.Process(target=_child, args=(self._config, number, os.getpid()), daemon=True)
        child.start()
        return child


def _child(config: Config, number: int, parent: int) -> None:
    """One of several processes; it ends with the first one, also when that is killed."""
    from processor.runtime.worker.os_process import stop_on_signal  # noqa: PLC0415

    stop = stop_on_signal()
    _run(config, bound_socket(config, is_shared=True), stop, number=number, look=lambda: os.getppid() != parent)


def _run(
    config: Config, listening: socket.socket, stop: threading.Event, *, number: int, look: Callable[[], bool]
) -> None:
    tune_interpreter()

    async def main() -> None:
        gateway = Gateway(config, number=number)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        watcher = asyncio.create_task(_watch(stop, ended, look))
        loop.slow_callback_duration = 1.0
        try:
            await serve(gateway, listening, ended)
        finally:
            watcher.cancel()

    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())


async def _watch(stop: threading.Event, ended: asyncio.Event, look: Callable[[], bool]) -> None:
    """End the gateway after a signal, or when `look`, which is called again and again, returns True."""
    while not stop.is_set() and not look():  # noqa: ASYNC110 - The event belongs to the thread of the signal.
        await asyncio.sleep(0.1)
    ended.set()


__all__ = ["SowstreamError", "bound_socket", "run_gateway", "serve"]
