"""Publishes over a gateway, and completes the futures of acks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Self

from processor.client.gateway.answers import LATER, Token, error_of, is_of_request
from processor.client.gateway.gateway_http import LinkTimes
from processor.client.gateway.link import GatewayLink
from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.errors import (
    AcksMissing,
    BrokerUnavailable,
    ConfigurationError,
    PublishRejected,
    RecordRejected,
    SowstreamError,
    VersionConflict,
)
from processor.kafka.own_process import AckFuture
from processor.wire.ack import CONFLICT, Ack
from processor.wire.publisher_headers import GATEWAY_ARGUMENTS

if TYPE_CHECKING:
    from processor.client.publish.deleting import Selection
    from processor.client.publish.outbox import PublishOptions
    from processor.record import Command, Value

log = logging.getLogger(__name__)

_POLL_S: Final = 0.1
_STALL_S: Final = 60.0
_NUMBERED_MAX: Final = 10_000
"""Commands that wait while they cannot be sent."""
_DEPTH_MAX: Final = 64
"""Deepest nesting of a record that a gateway takes."""
_CODEC: Final = JsonCodec(CodecOptions(max_depth=_DEPTH_MAX))


class _Pending:
    """A command without its last ack."""

    def __init__(
        self, topic: str, types: tuple[str, ...], options: PublishOptions, frame: tuple[Any, ...], until_s: float
    ) -> None:
        self.frame = frame
        """The arguments by which it is sent."""
        self.until_s = until_s
        """The time at which it is not sent again any more."""
        self.is_sent = False
        """False while it is to be sent, for the first time or again."""
        self.topic = topic
        self.types = types
        self.options = options
        self.future: Future[Ack] = AckFuture()
        # A command that was sent cannot be cancelled.
        self.future.set_running_or_notify_cancel()


class GatewaySender:
    """Sends commands over a WebSocket, whose answers are read on a thread. Any thread.

    A command with a `sequence` is sent again after a lost connection, in its order, until it is answered: it is carried
    out once. Another one fails then, as it may have been carried out. One that the gateway does not take now is sent
    again for `LinkTimes.publish_s`, and those behind it wait, as a worker drops a number that a higher one overtook.
    """

    def __init__(self, url: str, token: Token, name: str, times: LinkTimes = LinkTimes()) -> None:  # noqa: B008
        self._link = GatewayLink(url, token, name, times)
        self._link.open()
        self._sending = threading.Lock()  # Numbered commands keep their order.
        self._is_ready = True
        self._name = name
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._pauses: dict[str, float] = {}  # Topics whose numbered commands wait, and until when.
        self._attempts: dict[str, int] = {}
        self._answered_s = 0.0
        self._failed: SowstreamError | None = None
        self._refused: SowstreamError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"gateway-{name}", daemon=True)
        self._thread.start()

    def send(
        self, command: Command, topic: str, data: Value, key: str | None, options: PublishOptions
    ) -> Future[Ack] | None:
        """Send one command other than `sow_delete`."""
        return self._send(command, topic, {"key": key}, _written(data), options)

    def delete(self, topic: str, selection: Selection, options: PublishOptions) -> Future[Ack] | None:
        """Send a delete."""
        key, keys, data, filter_text = selection
        body = None if data is None else _written(data)
        fields = {"key": key, "keys": None if keys is None else list(keys), "filter": filter_text}
        return self._send("sow_delete", topic, fields, body, options)

    def mark(self, topic: str) -> int | None:
        """Refuse: a gateway does not read the mark topic."""
        raise ConfigurationError(f"mark({topic!r}): a gateway does not give it; ask with a client on Kafka")

    def named(self, name: str) -> Self:
        """Refuse: a gateway numbers the commands of a connection under the name of its client."""
        raise ConfigurationError(f"{name!r}: over a gateway each name has a client of its own")

    def flush(self, timeout_s: float | None) -> None:
        """Wait until every command was answered.

        Args:
            timeout_s: the longest wait; None: until no answer has come for a minute.

        Raises:
            AcksMissing: answers have not come in time.
            SowstreamError: a command without an ack failed.
        """
        began_s = time.monotonic()
        while self._pending:
            since_s = max(began_s, self._answered_s) if timeout_s is None else began_s
            if time.monotonic() - since_s >= (_STALL_S if timeout_s is None else timeout_s):
                raise AcksMissing(f"{len(self._pending)} commands were not answered by the gateway in time")
            time.sleep(_POLL_S / 10)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def deliver(self, timeout_s: float) -> None:
        """Wait until every command was answered; errors as `flush`."""
        self.flush(timeout_s)

    @property
    def is_calling_back(self) -> bool:
        """True on the thread that reads the answers."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the connection; futures that are not done fail."""
        self._stopping.set()
        self._thread.join()
        self._link.drop()
        self._fail(AcksMissing("the client was closed before the ack came"))

    def _send(
        self, op: str, topic: str, fields: dict[str, Any], data: bytes | None, options: PublishOptions
    ) -> Future[Ack] | None:
        if options.headers:
            raise ConfigurationError("headers: a gateway passes on no headers; publish straight to Kafka")
        types = options.ack_types(is_delete=op == "sow_delete")
        more: dict[str, Any] = {"topic": topic, "ack": ",".join(types) or None, "sequence": options.sequence}
        for name, value in options.of_headers().items():
            if name in GATEWAY_ARGUMENTS:
                GATEWAY_ARGUMENTS[name].write(value)  # A value that is out of range fails here.
                more[name] = value
        number = self._link.number()
        frame = (op, {**more, **fields}, number, data)
        self._link.frame(*frame)  # What cannot be sent fails here.
        pending = _Pending(topic, types, options, frame, time.monotonic() + self._link.times.publish_s)
        with self._sending:
            if self._refused is not None:
                raise self._refused
            if not self._is_ready and options.sequence is None:
                raise BrokerUnavailable("the connection to the gateway was lost; give a sequence to have it sent later")
            is_now = self._is_ready and (options.sequence is None or topic not in self._pauses)
            if not is_now and len(self._pending) >= _NUMBERED_MAX:
                raise BrokerUnavailable(f"{_NUMBERED_MAX} commands wait for the gateway; it takes none now")
            with self._lock:
                self._pending[number] = pending
            try:
                if is_now:
                    pending.is_sent = True
                    self._link.send(*frame)
            except BaseException as error:
                if not isinstance(error, BrokerUnavailable) or options.sequence is None:
                    self._pending.pop(number, None)  # It was not sent, so that no answer comes.
                    raise
        return pending.future if types else None

    def _read(self) -> None:
        lost = BrokerUnavailable("the connection to the gateway was lost: the command may have been carried out")
        while not self._stopping.is_set():
            try:
                if not self._link.is_open:
                    with self._sending:
                        self._is_ready = False
                    self._fail(lost, lambda one: one.options.sequence is None)
                    if self._link.reopen(_POLL_S):
                        self._send_again(None)
                    continue
                for topic in [one for one, until_s in self._pauses.items() if until_s <= time.monotonic()]:
                    self._send_again(topic)
                for message in self._link.receive(_POLL_S) or ():
                    self._take(message)
            except BrokerUnavailable:
                self._link.drop()
            except SowstreamError as error:
                self._refuse_all(error)
                return
            except Exception as error:
                log.exception("the answers of the gateway cannot be read any more")
                self._refuse_all(BrokerUnavailable(f"an answer of the gateway cannot be read: {type(error).__name__}"))
                return

    def _refuse_all(self, error: SowstreamError) -> None:
        """Fail the commands that wait, and all later ones: no thread reads their answers."""
        self._refused = error
        self._fail(error)

    def _send_again(self, topic: str | None) -> None:
        """Send the numbered commands that wait, in their order; others may follow.

        Args:
            topic: the topic whose pause is over; None: the connection is new, and all without an answer are sent.
        """
        with self._sending:
            for pending in list(self._pending.values()):
                if topic is None or (pending.topic == topic and not pending.is_sent):
                    pending.is_sent = True
                    self._link.send(*pending.frame)
            if topic is None:
                self._pauses.clear()
                self._is_ready = True
            else:
                del self._pauses[topic]

    def _pause(self, pending: _Pending, error: SowstreamError) -> None:
        """Let the numbered commands of a topic wait, as the gateway does not take one now; its time may be over."""
        topic = pending.topic
        pending.is_sent = False
        if time.monotonic() > pending.until_s:
            # Behind it nothing may be taken of what the caller has not seen fail.
            self._fail(error, lambda one: one.topic == topic and one.options.sequence is not None)
        elif topic not in self._pauses:
            attempts = self._attempts.get(topic, 0)
            self._attempts[topic] = attempts + 1
            self._pauses[topic] = time.monotonic() + self._link.times.backoff(attempts)

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("id") == "" and message.get("status") == "failure":
            self._fail(error_of(message))  # A frame was refused unread: which one is not known.
            return
        pending = self._pending.get(str(message.get("id")))
        if message.get("op") != "ack" or pending is None:
            return
        self._answered_s = time.monotonic()
        if pending.options.sequence is not None:
            if message["status"] != "success" and message.get("reason") in LATER:
                self._pause(pending, error_of(message))
                return
            self._attempts.pop(pending.topic, None)
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
            try:
                pending.options.on_ack(ack)
            except Exception:
                log.exception("on_ack raised for %s of %s", ack.ack_type, ack.topic)
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
                error = error_of(message) if is_of_request(reason) else PublishRejected(reason, detail)
        if not pending.types:
            self._failed = self._failed or error
        elif error is None:
            pending.future.set_result(ack)
        else:
            pending.future.set_exception(error)
        if pending.options.on_delivery is not None:
            try:
                pending.options.on_delivery(None if error is None else error)  # type: ignore[arg-type]
            except Exception:
                log.exception("on_delivery raised")

    def _fail(self, error: SowstreamError, chooses: Callable[[_Pending], bool] = lambda _: True) -> None:
        """Fail the commands that wait for an answer, or those of them that a function chooses."""
        with self._lock:
            pending = [one for one in self._pending.values() if chooses(one)]
            self._pending = {number: one for number, one in self._pending.items() if not chooses(one)}
        for one in pending:
            if one.types:
                one.future.set_exception(error)
            else:
                self._failed = self._failed or error


def _written(data: Value) -> bytes:
    """The JSON text of a record, or of bytes that are one.

    Raises:
        RecordRejected: JSON does not have a part of it, or it is nested too deep.
    """
    try:
        return _CODEC.encode(_CODEC.decode(data) if isinstance(data, bytes) else data)
    except TypeError as error:
        raise RecordRejected("undecodable", str(error)) from None


def _reason(message: dict[str, Any]) -> str | None:
    """The reason of an ack, as workers write it."""
    reason, detail = message.get("reason"), message.get("detail")
    if message["status"] == "success":
        return detail if isinstance(detail, str) else None
    return f"{reason}: {detail}"
