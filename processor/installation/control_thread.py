"""The worker's side of the control topic: receives operators' orders and writes notices, in the background."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections import defaultdict
from functools import cache, cached_property, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, TypedDict

import structlog

from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError, Stop, TopicFenced
from processor.installation.hold import Resume
from processor.kafka import errors as kafka_errors
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import OFFSET_BEGINNING, LogReader, Position
from processor.kafka.clients.publisher import Publisher
from processor.topics.family import control_topic
from processor.wire.control import RESHARDING, Failure, Fence, Key, Notice, Order, decode, decode_key, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.installation.hold import Hold
    from processor.kafka.message import Message

log = structlog.stdlib.get_logger("sowstream.control")

ORDER_AGE_MAX_MS: Final = 600_000
"""Age up to which a worker that starts obeys an order that is already in the topic."""

_TURN_S: Final = 0.2  # Longest time until a notice is written, without Kafka's own time.
_READ_MAX: Final = 1_000
_ASK_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 5.0  # If Kafka does not answer.
_ABSENT_S: Final = 30.0  # If there is no topic, or it may not be read.
_REFUSED_S: Final = 10.0  # After a notice that Kafka has not accepted.
_FLUSH_S: Final = 1.0
_STOP_S: Final = 3.0
_LOOK_S: Final = 10.0  # Longest wait of a pipeline in one attempt to start.
_PATIENCE_S: Final = 60.0  # Time for which a topic may not answer although Kafka does.
_SMALL_QUEUE: Final = {"queued.max.messages.kbytes": "1024"}


class ControlThread:
    """One thread of a worker process, with a reader and a producer of its own.

    Kafka may be away for any time, the topic may be missing or forbidden: the worker runs all the same. The newest
    notice of each partition and pipeline is kept and written as soon as possible.
    """

    def __init__(
        self, kafka: Mapping[str, str], application_id: str, prefix: str = "", *, process: str | None = None
    ) -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            application_id: the application of the pipelines that run here.
            prefix: the prefix of all topic names of the installation.
            process: a name of this process that stays the same over restarts, such as its slot's; None: host and
                process id.
        """
        self.topic = control_topic(prefix)
        """The Kafka topic."""
        self._kafka = kafka
        self._application_id = application_id
        self._process = process or f"{socket.gethostname()}-{os.getpid()}"
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        # Notices to be written; None: the notice in the topic is to be removed.
        self._pending: dict[Key, bytes | None] = {}
        self._queues: defaultdict[str, queue.SimpleQueue[Resume]] = defaultdict(queue.SimpleQueue)
        self._failed: set[str] = set()  # Pipelines that we have reported as failed.
        self._fences: dict[str, Fence] = {}  # Replaced as a whole, so that readers need no lock.
        self._stuck: dict[tuple[str, str], tuple[int, str]] = {}  # By pipeline and partition; replaced as a whole.
        self._has_looked = threading.Event()  # The topic was read to its end, or cannot be used.
        self._answered_s: float | None = None  # The time when Kafka answered first about the topic.
        # Used by the thread alone:
        self._there: set[Key] = set()  # Notices that are in the topic, or on their way there.
        self._sent: set[Key] = set()  # Those of them that we wrote ourselves, and perhaps have not read yet.
        self._obeyed: dict[Key, Order] = {}
        self._is_current = False  # Whether all records that were there at the start have been read.
        self._logged: set[str] = set()
        self._write_s = 0.0  # The time of the next attempt to write.
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Start the thread without waiting for it."""
        self._thread.start()

    def stop(self) -> None:
        """Write the pending notices, as far as Kafka accepts them within seconds, and end the thread."""
        with self._lock:
            failed = list(self._failed)
        for pipeline in failed:
            self.report_failure(pipeline, None)
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def orders(self, pipeline: str) -> queue.SimpleQueue[Resume]:
        """The queue of orders for a pipeline, always the same one; partitions of other workers are included."""
        with self._lock:
            return self._queues[pipeline]

    def fence(self, pipeline: str) -> TopicFenced | None:
        """The reason why workers must not merge a pipeline now; None: they may. Never waits."""
        fence = self._fences.get(pipeline)
        if fence is None or not fence.is_up:
            return None
        if fence.phase == RESHARDING:
            return TopicFenced(f"{pipeline}: {fence.sentence(pipeline)}")
        return TopicFenced(
            f"{pipeline}: its workers wait behind a fence (phase {fence.phase}, since {_moment(fence.at_ms)}, by "
            f"{fence.by}). `sowstream-spark handback {pipeline}` moves the merge back; a backfill ends by itself"
        )

    def fence_of(self, pipeline: str) -> Fence | None:
        """The fence of a pipeline as it was last read; None: it has none, or it was not read yet. Never waits."""
        return self._fences.get(pipeline)

    def learn_fence(self, pipeline: str, fence: Fence) -> None:
        """Apply a fence that a worker has found in its marks, unless a later one is known."""
        with self._lock:
            present = self._fences.get(pipeline)
            if present is None or present.at_ms < fence.at_ms:
                self._fences = {**self._fences, pipeline: fence}

    @property
    def has_looked(self) -> bool:
        """True if the fences that were there at the start have been read, or cannot be read."""
        return self._has_looked.is_set()

    def await_fences(self) -> None:
        """Wait until the fences that were written before have been read.

        Where there is no topic, or it may not be read, there are none for this process, and likewise where it alone
        does not answer for a minute: a fence is in the marks, too, and holds the partitions of its workers.

        Raises:
            BrokerUnavailable: Kafka does not answer.
        """
        if self._has_looked.wait(_LOOK_S):
            return
        answered_s = self._answered_s
        if answered_s is None or time.monotonic() - answered_s < _PATIENCE_S:
            raise BrokerUnavailable(
                f"reading {self.topic}, which shows whether another engine merges a topic: no answer in {_LOOK_S:g} s"
            )

    def report(self, pipeline: str, partition: int, hold: Hold | None) -> None:
        """Report that a partition of ours is held, or goes on (None). Never waits; the newest report counts.

        That a partition goes on is written only if the topic has a notice that it is held, perhaps of a worker that has
        died.
        """
        key = Key("held", self._application_id, pipeline, str(partition))
        self._put(key, None if hold is None else self._notice(hold).encode())

    def stuck(self, pipeline: str, partition: int) -> tuple[int, str] | None:
        """The offset at which the processor of a partition did not return, and the message; None: there is none.

        As it was last read. Never waits.
        """
        return self._stuck.get((pipeline, str(partition)))

    def report_failure(self, pipeline: str, message: str | None) -> None:
        """Report that a pipeline has failed in this process, or runs (None). Never waits; the newest report counts."""
        with self._lock:
            (self._failed.discard if message is None else self._failed.add)(pipeline)
        value = None if message is None else Failure(at_ms=_now_ms(), message=shortened(message), **_who()).encode()
        self._put(Key("failed", self._application_id, pipeline, self._process), value)

    def _put(self, key: Key, value: bytes | None) -> None:
        with self._lock:
            self._pending[key] = value

    def _notice(self, hold: Hold) -> Notice:
        now_ms = _now_ms()
        return Notice(
            at_ms=now_ms,
            message=shortened(hold.message),
            reason=hold.reason,
            offset=hold.offset,
            since_ms=hold.since_ms,
            tries=hold.tries,
            order_ms=hold.order_ms,
            next_try_ms=now_ms + max(0, round((hold.due_s - time.monotonic()) * 1000)),
            **_who(),
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = _RETRY_S
            try:
                if self._exists():
                    self._serve()
                else:
                    self._log_once("does not exist: `sowstream topics apply` creates it")
                    pause_s = _ABSENT_S
            except Stop as error:
                self._log_once(f"cannot be used now: {error}", about=type(error).__name__)
                is_silence = self._is_current or isinstance(error, BrokerUnavailable)
                pause_s = _RETRY_S if is_silence else _ABSENT_S
                if isinstance(error, ConfigurationError):
                    self._has_looked.set()  # Such as without the right to read it.
            except Exception:
                log.exception("the control topic cannot be used now", topic=self.topic)
            else:
                self._has_looked.set()
            self._stopping.wait(pause_s)

    def _exists(self) -> bool:
        try:
            self._admin.topic_id(self.topic, _ASK_TIMEOUT_S)
        except Stop as error:
            if kafka_errors.is_unknown(error):
                return False
            raise
        self._answered_s = self._answered_s or time.monotonic()
        return True

    def _serve(self) -> None:
        """Read and write until the thread is stopped, or the topic cannot be read on."""
        self._is_current = False
        self._there = set(self._sent)
        # The group is never joined; it has the topic's name, so that one ACL grants both.
        reader = LogReader({**self._kafka, **_SMALL_QUEUE}, group=self.topic)
        try:
            reader.add([Position(self.topic, 0, OFFSET_BEGINNING)])
            while not self._stopping.is_set():
                read = reader.read(_READ_MAX, _TURN_S)
                for message in read.messages:
                    self._take(message)
                if read.ends and not self._is_current:
                    self._is_current = True
                    self._has_looked.set()
                    self._logged.clear()
                self._write()
            self._write()
            if self._sent or "_publisher" in self.__dict__:
                with contextlib.suppress(SowstreamError):
                    self._publisher.flush(_FLUSH_S)
        finally:
            reader.close()

    def _take(self, message: Message) -> None:
        """Apply one record of the topic."""
        key = decode_key(message.key())
        if key is None or key.application_id != self._application_id:
            return
        value = message.value()
        if key.kind == "fence":
            self._take_fence(key.pipeline, None if value is None else decode(Fence, value))
            return
        if key.kind == "held":
            self._take_held(key, None if value is None else decode(Notice, value))
        if key.kind != "resume":
            (self._there.discard if value is None else self._there.add)(key)
            return
        order = None if value is None else decode(Order, value)
        if order is None or self._obeyed.get(key) == order:
            return  # After a read error the topic is read again from its beginning.
        self._obeyed[key] = order
        if not self._is_current and _now_ms() - order.at_ms > ORDER_AGE_MAX_MS:
            return
        log.info("order to go on", pipeline=key.pipeline, partition=key.place, skip_until=order.skip_until, by=order.by)
        self.orders(key.pipeline).put(Resume(order.partition, order.skip_until, order.at_ms))

    def _take_held(self, key: Key, notice: Notice | None) -> None:
        """Remember a partition that is held because its processor did not return."""
        stuck = {place: each for place, each in self._stuck.items() if place != (key.pipeline, key.place)}
        if notice is not None and notice.reason == "stuck":
            stuck[key.pipeline, key.place] = (notice.offset, notice.message)
        self._stuck = stuck

    def _take_fence(self, pipeline: str, fence: Fence | None) -> None:
        """Apply a fence; one that cannot be read, as of a newer format, leaves the former one in place."""
        if fence is None:
            return
        if self._is_current:
            log.info("fence", pipeline=pipeline, phase=fence.phase, by=fence.by)
        with self._lock:
            self._fences = {**self._fences, pipeline: fence}

    def _write(self) -> None:
        """Write the pending notices, once the notices in the topic have been read."""
        if "_publisher" in self.__dict__:
            self._publisher.serve()
        if not self._is_current or time.monotonic() < self._write_s:
            return
        with self._lock:
            pending, self._pending = self._pending, {}
        for key, value in pending.items():
            if value is None and key not in self._there and key not in self._sent:
                continue  # The topic has no notice to be removed.
            delivered = partial(self._delivered, key, value)
            if not self._publisher.try_send(self.topic, key.encode(), value, on_delivery=delivered, partition=0):
                self._retry_later(key, value)
                continue
            (self._sent.discard if value is None else self._sent.add)(key)
            if value is None:
                self._there.discard(key)

    def _delivered(self, key: Key, value: bytes | None, error: Stop | None) -> None:
        if error is not None:
            self._log_once(f"takes no notices: {error}", about="writing")
            self._sent.add(key)  # Whether the record before it was written is unknown.
            self._retry_later(key, value)

    def _retry_later(self, key: Key, value: bytes | None) -> None:
        """Retry a notice later that was not written, unless there is a newer one."""
        self._write_s = time.monotonic() + _REFUSED_S
        with self._lock:
            self._pending.setdefault(key, value)

    def _log_once(self, what: str, *, about: str = "absent") -> None:
        """Log each kind of trouble once, until the topic can be read again."""
        if about not in self._logged:
            self._logged.add(about)
            log.warning(
                "the control topic cannot be used; work goes on, but `sowstream status` and `resume` do without it",
                topic=self.topic,
                why=what,
            )

    @cached_property
    def _admin(self) -> Admin:
        return Admin(self._kafka, awaits_names=True)

    @cached_property
    def _publisher(self) -> Publisher:
        return Publisher(self._kafka)


class _Who(TypedDict):
    """The process in a record."""

    host: str
    pid: int
    version: str


@cache  # The version is looked up in files; no worker forks.
def _who() -> _Who:
    return {"host": socket.gethostname(), "pid": os.getpid(), "version": version("sowstream")}


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at_ms / 1000))


def _now_ms() -> int:
    return int(time.time() * 1000)
