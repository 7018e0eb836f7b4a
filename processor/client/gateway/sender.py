"""Publishes over a gateway, and completes the futures of acks."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from processor.client.gateway.link import GatewayLink, Token, error_of
from processor.errors import (
    AcksMissing,
    BrokerUnavailable,
    ConfigurationError,
    PublishRejected,
    SowstreamError,
    VersionConflict,
)
from processor.wire.ack import CONFLICT, Ack, ack_types

if TYPE_CHECKING:
    from processor.client.publish.deleting import Selection
    from processor.client.publish.publish_options import PublishOptions
    from processor.record import Command, Value

_REASONS: Final = frozenset(("bad_request", "bad_filter", "not_entitled", "too_many", "unsupported", "unknown_op"))
_POLL_S: Final = 0.1
_STALL_S: Final = 60.0


class _Pending:
    """A command without its last ack."""

    def __init__(self, topic: str, types: tuple[str, ...], options: PublishOptions) -> None:
        self.topic = topic
        self.types = types
        self.options = options
        self.future: Future[Ack] = Future()


class GatewaySender:
    """The contract of `CommandSender`, over a WebSocket whose answers are read on a thread. Any thread."""

    def __init__(self, url: str, token: Token, name: str) -> None:
        self._link = GatewayLink(url, token, name)
        self._link.open()
        self._name = name
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._failed: SowstreamError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"gateway-{name}", daemon=True)
        self._thread.start()

    def send(
        self, command: Command, topic: str, data: Value, key: str | None, options: PublishOptions
    ) -> Future[Ack] | None:
        """Send one command other than `sow_delete`."""
        body = json.loads(data) if isinstance(data, bytes) else data
        return self._send(command, topic, {"data": body, "key": key, "expiration": options.expiration}, options)

    def delete(self, topic: str, selection: Selection, options: PublishOptions) -> Future[Ack] | None:
        """Send a delete."""
        key, keys, data, filter_text = selection
        return self._send("sow_delete", topic, {"key": key, "keys": keys, "data": data, "filter": filter_text}, options)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until every command was answered.

        Raises:
            AcksMissing: answers have not come in time.
            SowstreamError: a command without an ack failed.
        """
        until_s = time.monotonic() + (_STALL_S if timeout_s is None else timeout_s)
        while self._pending and time.monotonic() < until_s:
            time.sleep(_POLL_S / 10)
        if self._pending:
            raise AcksMissing(f"{len(self._pending)} commands were not answered by the gateway in time")
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def deliver(self, timeout_s: float) -> None:
        """Wait until every command was answered; errors as `flush`."""
        self.flush(timeout_s)

    def close(self) -> None:
        """End the connection; futures that are not done fail."""
        self._stopping.set()
        self._thread.join()
        self._link.drop()
        self._fail(AcksMissing("the client was closed before the ack came"))

    def _send(self, op: str, topic: str, fields: dict[str, Any], options: PublishOptions) -> Future[Ack] | None:
        if options.headers:
            raise ConfigurationError("headers: a gateway passes on no headers; publish straight to Kafka")
        asked = "processed" if options.ack is None and options.expect_version is not None else options.ack
        types = () if asked is None else ack_types(asked, is_delete=op == "sow_delete")
        if options.on_ack is not None and not types:
            raise ConfigurationError("on_ack receives acks; ask for some, such as ack='persisted'")
        pending = _Pending(topic, types, options)
        number = self._link.number()
        with self._lock:
            self._pending[number] = pending
        more = {
            "topic": topic,
            "ack": ",".join(types) or None,
            "sequence": options.sequence,
            "correlation_id": options.correlation_id,
            "expect_version": options.expect_version,
        }
        try:
            self._link.send(op, {**more, **fields}, number)
        except BrokerUnavailable:
            self._pending.pop(number, None)
            raise
        return pending.future if types else None

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._link.is_open:
                    self._link.reopen(_POLL_S)
                    continue
                for message in self._link.receive(_POLL_S) or ():
                    self._take(message)
            except BrokerUnavailable as error:
                self._fail(error)  # The outcome of what was sent is not known.
            except SowstreamError as error:
                self._fail(error)
                return

    def _take(self, message: dict[str, Any]) -> None:
        pending = self._pending.get(str(message.get("id")))
        if message.get("op") != "ack" or pending is None:
            return
        kind = message.get("ack")
        is_last = not pending.types or message["status"] != "success" or kind == pending.types[-1]
        ack = Ack(
            message["status"],
            _reason(message),
            kind or (pending.types[-1] if pending.types else "received"),  # type: ignore[arg-type]
            pending.topic,
            message.get("key"),
            self._name,
            pending.options.sequence,
            pending.options.command_id,
            message.get("records_deleted"),
            message.get("version"),
        )
        if pending.options.on_ack is not None:
            pending.options.on_ack(ack)
        if not is_last:
            return
        with self._lock:
            self._pending.pop(str(message["id"]), None)
        error: SowstreamError | None = None
        if message["status"] != "success":
            reason, detail = str(message.get("reason")), str(message.get("detail"))
            if reason == CONFLICT:
                error = VersionConflict(detail, ack.version)
            else:
                error = error_of(message) if reason in _REASONS else PublishRejected(reason, detail)
        if not pending.types:
            self._failed = self._failed or error
        elif error is None:
            pending.future.set_result(ack)
        else:
            pending.future.set_exception(error)
        if pending.options.on_delivery is not None:
            pending.options.on_delivery(None if error is None else error)  # type: ignore[arg-type]

    def _fail(self, error: SowstreamError) -> None:
        with self._lock:
            pending, self._pending = list(self._pending.values()), {}
        for one in pending:
            if one.types:
                one.future.set_exception(error)
            else:
                self._failed = self._failed or error


def _reason(message: dict[str, Any]) -> str | None:
    """The reason of an ack, as workers write it."""
    reason, detail = message.get("reason"), message.get("detail")
    if message["status"] == "success":
        return detail if isinstance(detail, str) else None
    return f"{reason}: {detail}"
