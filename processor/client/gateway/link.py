"""A WebSocket to a gateway that restores itself, and the messages that come over it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import structlog
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from processor.client.gateway.answers import LATER, Token, Tokens, in_background
from processor.client.gateway.gateway_http import GatewayAddress, LinkTimes, refusal
from processor.codec import exact
from processor.codec.json import JsonCodec
from processor.config.secrets import shown_address
from processor.errors import BrokerUnavailable, ConfigurationError, RecordRejected, SowstreamError, Stop
from processor.record import Value

log = structlog.stdlib.get_logger("sowstream.client")

PROTOCOL: Final = "sowstream.v1"
_NO_IDENTITY: Final = 4401
_FORBIDDEN: Final = 4403
_RENEWAL: Final = "renewal"
_CLOSE_TIMEOUT_S: Final = 1.0
_QUIET: Final = logging.getLogger("sowstream.websockets")
"""The end of a connection is logged here, and not with a traceback by the library."""
_QUIET.setLevel(logging.CRITICAL)
_MESSAGE_BYTES: Final = 1024 * 1024
"""Largest request of a gateway that does not say its own limit."""
_CODEC: Final = JsonCodec()


class _Refused(Exception):
    """The gateway answered with another status."""

    def __init__(self, status: int, location: str | None) -> None:
        super().__init__()
        self.status: Final = status
        self.location: Final = location
        """The header `Location`."""


class _Connection(ClientConnection):
    """A connection to one address: the library would follow a redirect, and the token would be sent there."""

    def handshake(self, *arguments: Any, **settings: Any) -> None:
        """Connect. Raises `_Refused` in place of the error with which the library follows redirects."""
        try:
            super().handshake(*arguments, **settings)
        except InvalidStatus as error:
            answer = error.response
            raise _Refused(answer.status_code, answer.headers.get("Location")) from None


class GatewayLink:
    """One WebSocket. `receive` is for one thread at a time; `send` for any."""

    def __init__(self, url: str, token: Token, name: str, times: LinkTimes = LinkTimes()) -> None:  # noqa: B008
        """Prepare it; `open` and `reopen` connect.

        Args:
            url: the gateway's address, such as `http://localhost:8080`.
            token: proves who the client is.
            name: the client's name.
            times: the limits.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        self._address = GatewayAddress(url).of("/v1/ws", "ws")
        self._shown = shown_address(self._address)
        self._tokens = Tokens(token, times.open_s)
        self._name = name
        self.times: Final = times
        """The limits."""
        self._socket: ClientConnection | None = None
        self._numbers = 0
        self._lock = threading.Lock()
        self._opening: Future[tuple[ClientConnection, str | None]] | None = None
        self._failure: BrokerUnavailable | None = None
        self._attempts = 0
        self._ready_s = 0.0
        self._refusals = 0
        self._renew_s: float | None = None
        self._renewals = 0
        self._renewing = ""
        self._message_bytes = _MESSAGE_BYTES

    @property
    def is_open(self) -> bool:
        """True if it is connected, as far as was read."""
        return self._socket is not None

    @property
    def is_alive(self) -> bool:
        """True if it is connected now: the last ping was answered."""
        socket = self._socket
        return socket is not None and socket.protocol.state is State.OPEN

    def number(self) -> str:
        """A new id of a request."""
        with self._lock:
            self._numbers += 1
            return f"p{self._numbers}"

    def open(self) -> None:
        """Connect and log on for a call; attempts go on for `first_s`.

        Raises:
            BrokerUnavailable: the gateway has not answered by then.
            Stop: it refuses the client.
        """
        until_s = time.monotonic() + self.times.first_s
        while not self.reopen(self.times.backoff_s):
            if time.monotonic() > until_s:
                raise self._failure or BrokerUnavailable(f"the gateway at {self._shown} does not answer")

    def reopen(self, wait_s: float) -> bool:
        """Connect, for at most `wait_s`: the next call goes on with the attempt. Returns whether it is connected.

        Raises:
            Stop: the gateway refuses the client.
        """
        if self._opening is None:
            before_s = self._ready_s - time.monotonic()
            if before_s > 0:
                time.sleep(min(wait_s, before_s))
                if before_s > wait_s:
                    return False
            self._opening = in_background(self._connected)
        try:
            socket, token = self._opening.result(wait_s)
        except TimeoutError:
            return False
        except BrokerUnavailable as error:
            self._opening, self._failure = None, error
            if not self._attempts:
                log.warning("the gateway is away, and is tried again", address=self._shown, error=str(error))
            self._ready_s = time.monotonic() + self.times.backoff(self._attempts)
            self._attempts += 1
            return False
        except BaseException:
            self._opening = None
            raise
        if self._attempts:
            log.info("the gateway is connected again", address=self._shown)
        # Not before the logon: other threads may send from now on.
        self._opening, self._socket, self._attempts, self._refusals = None, socket, 0, 0
        self._renew_later(token)
        return True

    def send(
        self, op: str, fields: Mapping[str, Value], request_id: str | None = None, data: bytes | None = None
    ) -> str:
        """Send a request; returns its id. `data` is the JSON text of its field `data`.

        Raises:
            ConfigurationError: a field is no value of JSON.
            RecordRejected: it is larger than the gateway takes.
            BrokerUnavailable: there is no connection.
            Stop: the gateway refuses the client.
        """
        request_id = request_id or self.number()
        frame = self.frame(op, fields, request_id, data)
        socket = self._socket
        if socket is None:
            raise BrokerUnavailable("the connection to the gateway was lost")
        try:
            socket.send(frame, text=True)
        except ConnectionClosed as error:
            raise self._lost(error) from None
        return request_id

    def frame(self, op: str, fields: Mapping[str, Value], request_id: str, data: bytes | None = None) -> bytes:
        """The text of a request; arguments and errors as `send`, but for a lost connection."""
        try:
            frame = _CODEC.encode(
                {"op": op, "id": request_id} | {name: one for name, one in fields.items() if one is not None}
            )
        except TypeError as error:
            raise ConfigurationError(f"{op}: an argument cannot be sent: {error}") from None
        if data is not None:
            frame = b'%b,"data":%b}' % (frame.rstrip()[:-1], data)
        if len(frame) > self._message_bytes:
            raise RecordRejected(
                "too_large", f"the request has {len(frame)} bytes, and the gateway takes {self._message_bytes}"
            )
        return frame

    def receive(self, wait_s: float) -> list[dict[str, Any]] | None:
        """The messages of the next frame; None if none came in time. A token is renewed meanwhile.

        Raises:
            BrokerUnavailable: the connection was lost.
            Stop: the gateway refuses the client.
        """
        socket = self._socket
        if socket is None:
            raise BrokerUnavailable("the connection to the gateway was lost")
        if self._renew_s is not None and time.monotonic() >= self._renew_s:
            self._renew()
        try:
            messages = _read(socket, wait_s)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise self._lost(error) from None
        if self._renewing:
            for message in messages:
                if message.get("op") == "ack" and message.get("id") == _RENEWAL:
                    self._renewed(message)
        return messages

    def drop(self) -> None:
        """Close the connection."""
        socket, self._socket = self._socket, None
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(_abandon)
        self._renew_s, self._renewing = None, ""
        if socket is not None:
            socket.close()

    def _connected(self) -> tuple[ClientConnection, str | None]:
        """A socket that has logged on, and its token.

        Raises:
            BrokerUnavailable: the gateway does not answer, or not now.
            Stop: it refuses the client.
        """
        token = self._tokens.current()
        times = self.times
        try:
            connecting = connect(  # A context manager, which `drop` ends.
                self._address,
                subprotocols=[PROTOCOL],  # type: ignore[list-item]
                max_size=None,
                compression=None,
                open_timeout=times.open_s,
                ping_interval=times.silence_s,
                ping_timeout=times.silence_s,
                logger=_QUIET,
                create_connection=_Connection,
                close_timeout=min(_CLOSE_TIMEOUT_S, times.open_s),
            )
            socket = connecting.__enter__()
        except _Refused as error:
            raise refusal(self._shown, error.status, error.location) from None
        except (OSError, EOFError, WebSocketException) as error:
            raise BrokerUnavailable(f"the gateway at {self._shown} does not answer: {error}") from None
        try:
            self._log_on(socket, token)
        except BaseException:
            socket.close()
            raise
        return socket, token

    def _log_on(self, socket: ClientConnection, token: str | None) -> None:
        try:
            socket.send(self.frame("logon", {"token": token, "client": self._name}, "logon"), text=True)
            until_s = time.monotonic() + self.times.open_s
            while True:
                for answer in _read(socket, max(0.0, until_s - time.monotonic())):
                    if answer.get("op") == "ack" and answer.get("id") == "logon":
                        self._take_logon(answer)
                        return
        except TimeoutError:
            raise BrokerUnavailable(f"the gateway at {self._shown} did not answer the logon in time") from None
        except ConnectionClosed as error:
            raise self._lost(error) from None

    def _take_logon(self, answer: dict[str, Any]) -> None:
        if answer["status"] == "success":
            self._message_bytes = answer.get("message_bytes", _MESSAGE_BYTES)
            return
        detail = answer.get("detail")
        if answer.get("reason") in LATER:
            raise BrokerUnavailable(f"the gateway cannot log the client on now: {detail}")
        self._refusals += 1
        # A function may give another token the next time; two that were refused one after the other are an answer.
        if self._tokens.may_change and self._refusals < 2:
            raise BrokerUnavailable(f"the gateway refused a token: {detail}")
        raise Stop(f"the gateway refused the logon: {detail}")

    def _renew_later(self, token: str | None) -> None:
        """Plan the renewal of a JSON Web Token that a function gave."""
        wait_s = self._tokens.renewal_s(token)
        self._renewals, self._renewing = 0, ""
        self._renew_s = None if wait_s is None else time.monotonic() + wait_s

    def _renew(self) -> None:
        """Log on again with a new token; the answer comes with the messages."""
        self._renew_s = None
        try:
            token = self._tokens.current()
            self.send("logon", {"token": token, "client": self._name}, _RENEWAL)
            self._renewing = token or ""
        except BrokerUnavailable as error:
            self._renew_again(str(error))

    def _renewed(self, answer: dict[str, Any]) -> None:
        if answer["status"] == "success":
            self._renew_later(self._renewing)
        else:
            self._renewing = ""
            self._renew_again(str(answer.get("detail")))

    def _renew_again(self, reason: str) -> None:
        """Try once more, while the session lasts."""
        log.warning("a token was not renewed; it is tried again", reason=reason)
        self._renewals += 1
        self._renew_s = time.monotonic() + self.times.backoff(self._renewals)

    def _lost(self, error: ConnectionClosed) -> SowstreamError:
        """Drop the connection; returns the error of its end."""
        self.drop()
        code, reason = (0, "") if error.rcvd is None else (error.rcvd.code, error.rcvd.reason)
        if code == _FORBIDDEN or (code == _NO_IDENTITY and self._tokens.is_none):
            return Stop(f"the gateway refused the client: {reason}")
        return BrokerUnavailable(f"the connection to the gateway was lost: {reason or code}")


def _abandon(opening: Future[tuple[ClientConnection, str | None]]) -> None:
    """Close a socket that is not needed any more."""
    if opening.exception() is None:
        opening.result()[0].close()


def _read(socket: ClientConnection, wait_s: float) -> list[dict[str, Any]]:
    tree = exact.read(socket.recv(wait_s, decode=False))
    return tree if type(tree) is list else [tree]
