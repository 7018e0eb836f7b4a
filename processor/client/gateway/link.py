"""A WebSocket to a gateway that restores itself, and the messages that come over it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError, Stop
from processor.record import Value
from processor.subscriptions import Message

Token: TypeAlias = "str | Callable[[], str] | None"  # noqa: S105 - It is a type.
"""A token, or a function that gives one for each connection."""

PROTOCOL: Final = "sowstream.v1"
_BACKOFF_S: Final = 0.25
_BACKOFF_MAX_S: Final = 15.0
_OPEN_TIMEOUT_S: Final = 15.0
_ANSWER_TIMEOUT_S: Final = 30.0
_FIELDS: Final = frozenset(Message._fields)


class GatewayLink:
    """One WebSocket. `receive` is for one thread at a time; `send` for any."""

    def __init__(self, url: str, token: Token, name: str) -> None:
        """Prepare it; `open` connects.

        Args:
            url: the gateway's address, such as `http://localhost:8080`.
            token: proves who the client is.
            name: the client's name.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        parts = urlsplit(url)
        schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
        if parts.scheme not in schemes or not parts.netloc:
            raise ConfigurationError(f"gateway: {url!r} is not an address; write http://HOST:PORT or https://HOST:PORT")
        self._address = urlunsplit((schemes[parts.scheme], parts.netloc, "/v1/ws", "", ""))
        self._token = token
        self._name = name
        self._socket: ClientConnection | None = None
        self._undo = ExitStack()
        self._numbers = 0
        self._lock = threading.Lock()
        self._attempts = 0
        self._ready_s = 0.0

    @property
    def is_open(self) -> bool:
        """True if it is connected."""
        return self._socket is not None

    def number(self) -> str:
        """A new id of a request."""
        with self._lock:
            self._numbers += 1
            return f"p{self._numbers}"

    def open(self) -> None:
        """Connect and log on.

        Raises:
            BrokerUnavailable: the gateway does not answer.
            Stop: it refuses the client.
        """
        undo = ExitStack()
        try:
            socket = undo.enter_context(
                connect(
                    self._address,
                    subprotocols=[PROTOCOL],  # type: ignore[list-item]
                    max_size=None,
                    compression=None,
                    open_timeout=_OPEN_TIMEOUT_S,
                )
            )
        except InvalidStatus as error:
            raise BrokerUnavailable(
                f"the gateway at {self._address} refused the connection with status {error.response.status_code}"
            ) from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise BrokerUnavailable(f"the gateway at {self._address} does not answer: {error}") from None
        self._socket, self._undo = socket, undo
        token = self._token() if callable(self._token) else self._token
        if token is not None:
            answer = self.ask("logon", {"token": token, "client": self._name})
            if answer["status"] != "success":
                self.drop()
                raise Stop(f"the gateway refused the logon: {answer.get('detail')}")
        self._attempts = 0

    def reopen(self, wait_s: float) -> bool:
        """Try to connect again, at most after `wait_s`; returns whether it is connected.

        Raises:
            Stop: the gateway refuses the client.
        """
        now_s = time.monotonic()
        if now_s < self._ready_s:
            time.sleep(min(wait_s, self._ready_s - now_s))
            if time.monotonic() < self._ready_s:
                return False
        try:
            self.open()
        except BrokerUnavailable:
            longest_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2**self._attempts)
            self._attempts += 1
            self._ready_s = time.monotonic() + random.random() * longest_s  # noqa: S311 - Spreads clients in time.
            return False
        return True

    def send(self, op: str, fields: Mapping[str, Value], request_id: str | None = None) -> str:
        """Send a request; returns its id.

        Raises:
            BrokerUnavailable: there is no connection.
        """
        request_id = request_id or self.number()
        socket = self._socket
        if socket is None:
            raise BrokerUnavailable("the connection to the gateway was lost")
        text = json.dumps({"op": op, "id": request_id} | {name: one for name, one in fields.items() if one is not None})
        try:
            socket.send(text)
        except ConnectionClosed:
            self.drop()
            raise BrokerUnavailable("the connection to the gateway was lost") from None
        return request_id

    def ask(self, op: str, fields: Mapping[str, Value], request_id: str | None = None) -> dict[str, Any]:
        """Send a request before any subscription, and wait for its answer."""
        request_id = self.send(op, fields, request_id)
        until_s = time.monotonic() + _ANSWER_TIMEOUT_S
        while time.monotonic() < until_s:
            for message in self.receive(_ANSWER_TIMEOUT_S) or ():
                if message.get("op") == "ack" and message.get("id") == request_id:
                    return message
        raise BrokerUnavailable("the gateway did not answer in time")

    def receive(self, wait_s: float) -> list[dict[str, Any]] | None:
        """The messages of the next frame; None if none came in time.

        Raises:
            BrokerUnavailable: the connection was lost.
        """
        socket = self._socket
        if socket is None:
            raise BrokerUnavailable("the connection to the gateway was lost")
        try:
            tree = json.loads(socket.recv(wait_s))
        except TimeoutError:
            return None
        except ConnectionClosed:
            self.drop()
            raise BrokerUnavailable("the connection to the gateway was lost") from None
        return tree if type(tree) is list else [tree]

    def drop(self) -> None:
        """Close the connection."""
        self._socket = None
        self._undo.close()


def message_of(fields: Mapping[str, Any], *, names_subscriptions: bool) -> Message:
    """A message, as the client delivers it."""
    known = {name: value for name, value in fields.items() if name in _FIELDS}
    known["removed"] = tuple(known.get("removed", ()))
    if names_subscriptions:
        known["sub_ids"] = tuple(fields.get("subs", ()))
    return Message(**known)


def error_of(answer: Mapping[str, Any]) -> SowstreamError:
    """The error of a failed request."""
    detail = answer.get("detail") or answer.get("reason") or "the request failed"
    if answer.get("reason") in ("bad_request", "bad_filter", "not_entitled", "too_many", "unknown_op", "unsupported"):
        return ConfigurationError(str(detail))
    return Stop(str(detail))
