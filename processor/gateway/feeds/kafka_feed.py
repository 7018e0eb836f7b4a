"""The feed of one topic: reads Kafka on a thread of its own, and gives the records to an engine on the event loop.

::

    thread      open the kept view ─▶ read its missing records ─┬▶ read on ────▶ read on ──▶ lost: open again
    event loop                                                  ╰─▶ engine ──▶ deliver ──────▶ sessions begin again

The view on disk stays some seconds behind the engine: so a gateway that was killed finds the updates of these seconds
again in Kafka, with the records before them, and its clients resume.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from processor.client.feeds.compact_records import CompactRecords, without_collector
from processor.client.feeds.snapshot_boundary import SnapshotBoundary, refuse_moved
from processor.client.feeds.stored_view import StoredView
from processor.errors import (
    BrokerUnavailable,
    DiskUnusable,
    PositionLost,
    SowstreamError,
    StateDamaged,
    Stop,
    TopicMoved,
)
from processor.gateway.feeds.intake import Intake
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.record import Record
from processor.subscriptions import Engine, Topic
from processor.subscriptions.records.update_history import UpdateHistory
from processor.subscriptions.request.record_order import SortOrder
from processor.subscriptions.request.turn import Turn
from processor.topics.family import SNAPSHOT_MS_MAX

log = structlog.stdlib.get_logger("sowstream.gateway")

_OUTSTANDING_MAX: Final = 20_000
"""Records that were read and wait for the event loop."""
_BATCH_MAX: Final = 1_000
"""Records that the engine takes without a pause for sockets."""
_WRITE_INTERVAL_S: Final = 10.0
_LOOK_S: Final = 60.0
"""Time between two requests for the ends of quiet partitions."""
_SILENT_S: Final = _LOOK_S * 2
"""A partition of which nothing was heard for longer was cut off, or the machine was suspended."""
_RETRY_S: Final = 1.0
_RETRY_MAX_S: Final = 10.0
_EXACT_S: Final = SNAPSHOT_MS_MAX / 1000 * 0.8
"""Updates are complete for so long: later, compaction may have removed all but the last one of a key."""


class KafkaFeed:
    """The state of one topic for all clients: its engine, its view and its history."""

    def __init__(
        self,
        topic: Topic,
        kafka: dict[str, str],
        sow: str,
        *,
        group: str,
        directory: Path,
        history_bytes: int,
        indexes: Iterable[tuple[str, ...]] = (),
        orders: Iterable[str] = (),
    ) -> None:
        """Begin without records; `start` reads them.

        Args:
            topic: parses the records.
            kafka: librdkafka properties.
            sow: the SOW topic's name in Kafka.
            group: the reader's name for the brokers.
            directory: keeps the view.
            history_bytes: the limit of past updates for clients that resume.
            indexes: the declared indexes: lists of paths.
            orders: the declared orders.

        Raises:
            FilterError: a declared order cannot be meant.
        """
        self.topic: Final = topic
        """Parses the records."""
        self.topic_id = ""
        """The id of the topic in Kafka."""
        self.engine: Engine | None = None
        """The engine, while the feed is ready; only for the event loop."""
        self.on_begin: Callable[[KafkaFeed], None] = _ignore
        """Called on the event loop when there is a new engine, and when the topic has moved."""
        self.updates = 0
        """Records that the engine took."""
        self.lag_records = 0
        """Records that were read and wait for the engine."""
        self.moved: TopicMoved | None = None
        """The error of a topic that has moved, which has no records any more."""
        self.last_update_ms = 0
        """The Kafka timestamp of the record that the engine took last."""
        self._kafka = kafka
        self._sow = sow
        self._group = group
        self._directory = directory
        self._history_bytes = history_bytes
        self._indexes = tuple(indexes)
        self._orders = tuple(orders)
        for order in self._orders:
            SortOrder(order or None)  # A wrong one is refused at the start, and not on the thread.
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._broken = threading.Event()  # The engine failed on the event loop; the thread begins again.
        self._room = threading.Condition()
        self._outstanding = 0
        self._intake = Intake(self._take)
        self._view: StoredView | None = None
        self._written_s = 0.0
        self._moved_id = ""  # The id of the topic, for the thread.
        self._thread = threading.Thread(target=self._run, name=f"feed-{topic.name}", daemon=True)

    @property
    def is_ready(self) -> bool:
        """True if its view has caught up."""
        return self.engine is not None

    def start(self) -> None:
        """Begin to read; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def ready(self, timeout_s: float) -> Engine:
        """Wait for the engine.

        Raises:
            TopicMoved: another topic has taken its place.
            BrokerUnavailable: the view has not caught up in time.
        """
        if self.moved is not None:
            raise self.moved
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            raise BrokerUnavailable(f"the view of {self.topic.name} has not caught up yet; try again later") from None
        assert self.engine is not None
        return self.engine

    async def stop(self) -> None:
        """End the thread, and keep the view."""
        self._stopping.set()
        with self._room:
            self._room.notify_all()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        view, self._view, self.engine = self._view, None, None
        if view is not None:
            view.close()

    def punctuate(self, now_ms: int) -> None:
        """Send conflated updates that are due, and let the view on disk follow."""
        if self.engine is None:
            return
        try:
            due_ms = self.engine.due_ms
            if due_ms is not None and due_ms <= now_ms:
                self.engine.punctuate(now_ms)
            self.engine.advance()
        except Exception as error:  # noqa: BLE001 - As in `_take`.
            self._break(error)
        now_s = time.monotonic()
        if self._view is not None and now_s - self._written_s > _WRITE_INTERVAL_S:
            self._written_s = now_s
            try:
                self._view.write_behind()
            except (StateDamaged, DiskUnusable) as error:
                log.warning("the view cannot be written; it goes on in memory", topic=self.topic.name, error=str(error))

    # On the thread.

    def _run(self) -> None:
        wait_s = _RETRY_S
        while not self._stopping.is_set():
            try:
                self._follow()
                wait_s = _RETRY_S
            except SowstreamError as error:
                if error is not self.moved:
                    log.warning("the feed begins again", topic=self.topic.name, error=str(error), wait_s=wait_s)
                wipes = isinstance(error, StateDamaged | PositionLost)
                self.moved = error if isinstance(error, TopicMoved) else None
            except Exception:
                log.exception("the feed failed and begins again", topic=self.topic.name)
                wipes = True
            else:
                return
            self._call(partial(self._end, wipes=wipes))
            if self.moved is not None:
                self._call(partial(self.on_begin, self))  # Its subscriptions begin again, and end with the error.
            self._stopping.wait(wait_s)
            wait_s = min(wait_s * 2, _RETRY_MAX_S)

    def _follow(self) -> None:
        """Open the topic, read the records that the view lacks, and then all updates."""
        admin = Admin(self._kafka, awaits_names=True)
        lookup = TopicLookup(admin)
        partitions = lookup.partitions(self._sow)
        topic_id = admin.topic_id(self._sow)
        if self.moved is not None and self._moved_id == topic_id:
            raise self.moved  # Until it is created again.
        self._moved_id = topic_id
        refuse_moved(self._kafka, admin, self._sow, partitions, self._group)
        boundary = SnapshotBoundary(
            self._kafka,
            admin,
            topic=self._sow,
            partitions=range(partitions),
            group=self._group,
            topic_id=topic_id,
            make=CompactRecords().records,
        )
        try:
            view = StoredView(self._directory, self._sow, topic_id, partitions, keeps=True)
            try:
                engine = self._caught_up(boundary, view, admin)
            except BaseException:
                view.close(keeps=False)
                raise
            if engine is None or self._stopping.is_set():
                view.close()
                return
            boundary.follow()
            self._call(partial(self._begin, engine, view, topic_id))
            self._read(boundary)
        finally:
            boundary.close()

    def _caught_up(self, boundary: SnapshotBoundary, view: StoredView, admin: Admin) -> Engine | None:
        """An engine with all records before the boundary, and with the updates that the view on disk lacked."""
        oldest = {partition: boundary.oldest(partition) for partition in boundary.ends}
        stale = view.wipe_stale(boundary.ends, oldest, admin.delete_retention_ms(self._sow))
        for partition, reason in stale.items():
            log.info("a partition of the view is read again", topic=self.topic.name, partition=partition, reason=reason)
        begins = {partition: max(at, oldest[partition]) for partition, at in view.positions.items()}
        exact = {
            partition
            for partition, at in view.positions.items()
            if at > 0 and time.time() - view.as_of_s(partition) < _EXACT_S
        }
        engine = Engine(
            self.topic,
            view,
            history=UpdateHistory(self._history_bytes) if self._history_bytes else None,
            indexes=self._indexes,
            orders=self._orders,
            turn=Turn(),
        )
        for partition, at in begins.items():
            engine.open(partition, at)
        with without_collector():
            for partition, records in boundary.between(begins, boundary.ends, breathes=True):
                if self._stopping.is_set():
                    return None
                if records and partition in exact:
                    engine.take(partition, records, _now_ms())
                elif records:
                    engine.load(partition, records)
                    view.settle()
        now_s = time.time()
        for partition, end in boundary.ends.items():
            view.reached(partition, end, now_s)
            if partition in exact:
                engine.reach(partition, end)
            else:  # Updates behind the last record may have been compacted away: nothing before the end is resumed.
                engine.open(partition, end)
        if len(exact) < len(begins):
            # Read from the beginning: on disk at once, so that clients can resume even if the gateway is killed now.
            view.write_behind()
            view.write_behind()
        engine.index()
        return engine

    def _read(self, boundary: SnapshotBoundary) -> None:
        looked_s = time.monotonic()
        while not self._stopping.is_set():
            if self._broken.is_set():
                self._broken.clear()
                raise StateDamaged(f"the view of {self.topic.name} could not take a record")
            fetched = boundary.after()
            if fetched.silent_s > _SILENT_S:
                boundary.check_pause(fetched.silent_s)  # Otherwise the view might keep deleted records for ever.
            for partition, records in fetched.batches:
                for begin in range(0, len(records), _BATCH_MAX):
                    part = records[begin : begin + _BATCH_MAX]
                    with self._room:
                        self._room.wait_for(self._has_room)
                        self._outstanding += len(part)
                    if not self._call(partial(self._intake.add, partition, part)):
                        return
            if fetched.ends:
                self._call(partial(self._intake.add_call, partial(self._reach, fetched.ends, time.time())))
            if time.monotonic() - looked_s > _LOOK_S and self.engine is not None:
                looked_s = time.monotonic()
                # A quiet partition is up to date: otherwise its view on disk would look as old as its last record.
                ends = boundary.quiet_ends(self.engine.positions)
                self._call(partial(self._intake.add_call, partial(self._reach, ends, time.time())))

    def _has_room(self) -> bool:
        return self._outstanding < _OUTSTANDING_MAX or self._stopping.is_set() or self._broken.is_set()

    def _call(self, call: Callable[[], None]) -> bool:
        """Call something on the event loop; False: it has ended."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True

    # On the event loop.

    def _begin(self, engine: Engine, view: StoredView, topic_id: str) -> None:
        self.engine, self._view, self.topic_id, self.moved = engine, view, topic_id, None
        self._written_s = time.monotonic()
        self._ready.set()
        self.on_begin(self)

    def _end(self, *, wipes: bool) -> None:
        """Close the view of a feed that cannot go on; sessions begin again with the next engine."""
        view, self._view, self.engine = self._view, None, None
        self._intake.clear()
        self._ready.clear()
        with self._room:
            self._outstanding = 0
            self._room.notify_all()
        if view is None:
            return
        try:
            if wipes:
                view.wipe()
            view.close(keeps=not wipes)
        except (StateDamaged, Stop) as error:
            log.warning("the view could not be closed", topic=self.topic.name, error=str(error))

    def _reach(self, ends: dict[int, int], as_of_s: float) -> None:
        """Note that nothing was left to read before some offsets."""
        if self.engine is None or self._view is None:
            return
        for partition, end in ends.items():
            self.engine.reach(partition, end)
            self._view.reached(partition, end, as_of_s)

    def _take(self, partition: int, records: list[Record]) -> None:
        with self._room:
            self._outstanding = max(0, self._outstanding - len(records))
            self.lag_records = self._outstanding
            self._room.notify_all()
        if self.engine is None:
            return
        try:
            self.engine.take(partition, records, _now_ms())
        except Exception as error:  # noqa: BLE001 - No subscription has the rest of the records: all begin again.
            self._break(error)
            return
        self.updates += len(records)
        self.last_update_ms = records[-1].timestamp_ms

    def _break(self, error: Exception) -> None:
        """Close the view, and let the thread begin again."""
        cause = None if isinstance(error, SowstreamError) else error
        log.warning("the view failed; the feed begins again", topic=self.topic.name, error=str(error), exc_info=cause)
        self._broken.set()
        self._end(wipes=isinstance(error, StateDamaged))


def _ignore(_feed: KafkaFeed) -> None:
    """Do nothing."""


def _now_ms() -> int:
    """The clock of conflation intervals, which is never set back."""
    return time.monotonic_ns() // 1_000_000
