"""The worker's side of the control topic, on a real Kafka: notices that are written, and orders that arrive."""

from __future__ import annotations

import json
import queue
import re
import socket
import time
from typing import TYPE_CHECKING, get_args

import pytest
from structlog.testing import capture_logs

from processor.errors import BrokerUnavailable, HoldReason
from processor.installation import control_thread
from processor.installation.control_thread import ControlThread
from processor.installation.control_topic import ControlTopic
from processor.installation.hold import REMEDIES, Resume
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.runtime.loop.held_tasks import Hold
from processor.topics.family import control_spec
from processor.wire.control import Fence, Order
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.broker]

APPLICATION = "desk"
HELD = Hold("rejects", "too many records were rejected", 120, 1_700_000_000_000, 0, 0.0)


class Place:
    """A control topic of one's own, and the threads on it."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.kafka = {"bootstrap.servers": bootstrap}
        self.prefix = prefix
        self.admin = Admin(self.kafka)
        self.control = ControlTopic(self.kafka, self.admin, prefix=prefix)
        self.threads: list[ControlThread] = []

    def create(self) -> None:
        """Create the topic."""
        self.admin.create([control_spec(self.prefix)])

    def thread(self, application_id: str = APPLICATION, process: str = "worker-0") -> ControlThread:
        """A worker's thread, running."""
        thread = ControlThread(self.kafka, application_id, self.prefix, process=process)
        self.threads.append(thread)
        thread.start()
        return thread

    def end(self) -> int:
        """The number of records that the topic has had."""
        return self.admin.end_offsets(self.control.topic, [0])[0]

    def held(self, pipeline: str = "orders") -> dict[int, tuple[str, int]]:
        """The held partitions, with reason and offset."""
        entries = self.control.read(APPLICATION)
        assert entries is not None
        return {number: (one.reason, one.offset) for number, one in entries.held.get(pipeline, {}).items()}

    def failed(self) -> dict[str, str]:
        """The processes in which the pipeline has failed, with the message."""
        entries = self.control.read(APPLICATION)
        assert entries is not None
        return {name: one.message for name, one in entries.failed.get("orders", {}).items()}

    def write(self, key: str, value: object) -> None:
        """Write a record as another program would."""
        publisher = Publisher(self.kafka)
        data = None if value is None else json.dumps(value).encode()
        publisher.send(self.control.topic, key.encode(), data, partition=0)
        publisher.flush(120)


@pytest.fixture
def place(bootstrap: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A control topic that no other test uses; its threads wait as long as a busy machine needs."""
    monkeypatch.setattr(control_thread, "_LOOK_S", PATIENCE_S)
    monkeypatch.setattr(control_thread, "_STOP_S", PATIENCE_S)
    made = Place(bootstrap, f"{unique}.")
    yield made
    for thread in made.threads:
        thread.stop()
    made.admin.delete([made.control.topic])


def test_a_notice_is_written_and_taken_back(place: Place):
    """A hold is in the topic with all its fields; once the partition goes on, its notice is removed."""
    place.create()
    thread = place.thread()
    thread.report("orders", 3, HELD._replace(due_s=time.monotonic() + 600))
    until(lambda: place.held() == {3: ("rejects", 120)}, "the notice")
    entries = place.control.read(APPLICATION)
    assert entries is not None
    notice = entries.held["orders"][3]
    assert (notice.message, notice.since_ms, notice.tries) == (HELD.message, HELD.since_ms, 0)
    assert 400_000 < notice.next_try_ms - time.time() * 1000 <= 600_000
    assert notice.host
    thread.report("orders", 3, None)
    until(lambda: place.held() == {}, "taking it back")
    assert place.end() == 2


def test_a_notice_told_and_taken_back_at_once_leaves_nothing(place: Place):
    """A notice that is reported and removed at once leaves no record: the newest report counts."""
    place.create()
    thread = place.thread()
    for tries in range(100):
        thread.report("orders", 3, HELD._replace(tries=tries))
    thread.report("orders", 3, None)
    thread.report("orders", 4, HELD)
    until(lambda: 4 in place.held(), "the other notice")
    assert set(place.held()) == {4}


def test_healthy_partitions_cost_no_write(place: Place):
    """A thousand partitions that go on, reported again and again, cause no write."""
    place.create()
    thread = place.thread()
    for partition in range(1000):
        thread.report("orders", partition, None)
    thread.report_failure("orders", None)
    thread.report("orders", 1000, HELD)
    until(lambda: 1000 in place.held(), "the one notice")
    assert place.end() == 1


def test_the_notice_of_a_dead_worker_is_taken_back_by_the_next_owner(place: Place):
    """The notice of a dead worker is removed by the next owner of the partition, and kept without one."""
    place.create()
    dead = place.thread(process="dead")
    dead.report("orders", 3, HELD)
    dead.report("orders", 4, HELD)
    until(lambda: set(place.held()) == {3, 4}, "the notices")
    dead.stop()
    assert set(place.held()) == {3, 4}
    place.thread(process="next").report("orders", 3, None)
    until(lambda: set(place.held()) == {4}, "taking one back")


def test_a_pipeline_that_failed_is_told_by_each_process(place: Place):
    """A failed pipeline is reported by each process; a process that runs it again, or ends, removes its notice."""
    place.create()
    first, second = place.thread(process="worker-0"), place.thread(process="worker-1")
    first.report_failure("orders", "the disk is full")
    second.report_failure("orders", "x" * 100_000)
    until(lambda: set(place.failed()) == {"worker-0", "worker-1"}, "both notices")
    assert place.failed()["worker-0"] == "the disk is full"
    assert len(place.failed()["worker-1"]) < 5_000
    first.report_failure("orders", None)
    until(lambda: set(place.failed()) == {"worker-1"}, "taking the first one back")
    second.stop()
    assert place.failed() == {}


def test_without_the_topic_work_goes_on_and_the_newest_notice_is_written_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Without the topic work goes on with one warning; the newest notices are written when the topic was created."""
    monkeypatch.setattr(control_thread, "_ABSENT_S", 0.05)
    looks: list[bool] = []
    exists = ControlThread._exists
    monkeypatch.setattr(ControlThread, "_exists", lambda self: looks.append(found := exists(self)) or found)
    with capture_logs() as lines:
        thread = place.thread()
        for tries in range(3):
            thread.report("orders", 3, HELD._replace(offset=tries))
        until(lambda: len(looks) > 3, "looking again")
        assert place.control.read(APPLICATION) is None
    # A broker that is slow to answer causes a warning too, in other words.
    warnings = [line for line in lines if "does not exist" in line.get("why", "")]
    assert len(warnings) == 1
    assert "sowstream topics apply" in warnings[0]["why"]
    place.create()
    until(lambda: place.held() == {3: ("rejects", 2)}, "the newest notice")
    assert place.end() == 1


def test_where_no_kafka_answers_nothing_is_waited_for(bootstrap: str):
    """Without Kafka, reporting, fetching orders and stopping take no longer than with it."""
    thread = ControlThread({"bootstrap.servers": "127.0.0.1:1"}, APPLICATION)
    thread.start()
    began_s = time.monotonic()
    for number in range(10_000):
        thread.report("orders", number % 10, HELD)
    assert thread.orders("orders").empty()
    thread.stop()
    assert time.monotonic() - began_s < 60  # A wait of a hundredth of a second for each of them would take longer.


def test_an_order_arrives_once_at_each_worker_of_its_application(place: Place):
    """An order arrives once at each worker of its application; broken orders, newer formats and others' are ignored."""
    place.create()
    first, second = place.thread(), place.thread(process="worker-1")
    place.write("resume/desk/orders/5", {"format": 99, "partition": 5, "skip_until": 9, "at_ms": 1, "by": "x"})
    place.write("resume/desk/orders/6", "no order")
    place.write("resume/desk/orders", {"format": 1})
    place.write("resume/other/orders/3", {"format": 1, "partition": 3, "skip_until": 1, "at_ms": 1, "by": "x"})
    order = Order(at_ms=int(time.time() * 1000), partition=3, skip_until=123, by="anna@desk", later=1)
    place.control.write_order(APPLICATION, "orders", order)
    expected = Resume(3, 123, order.at_ms)
    assert [thread.orders("orders").get(timeout=PATIENCE_S) for thread in (first, second)] == [expected, expected]
    again = Order(at_ms=order.at_ms + 1, partition=None, skip_until=None, by="anna@desk")
    place.control.write_order(APPLICATION, "orders", again)
    assert first.orders("orders").get(timeout=PATIENCE_S) == Resume(None, None, again.at_ms)
    assert second.orders("orders").get(timeout=PATIENCE_S) == Resume(None, None, again.at_ms)
    assert first.orders("other").empty()


def test_a_worker_that_starts_obeys_young_orders_only(place: Place):
    """A worker that starts obeys recent orders only: an old one might skip other records than intended."""
    place.create()
    now_ms = int(time.time() * 1000)
    old = Order(at_ms=now_ms - control_thread.ORDER_AGE_MAX_MS - 1, partition=3, skip_until=123, by="anna@desk")
    young = Order(at_ms=now_ms - 1000, partition=4, skip_until=7, by="anna@desk")
    place.control.write_order(APPLICATION, "orders", old)
    place.control.write_order(APPLICATION, "orders", young)
    orders = place.thread().orders("orders")
    assert orders.get(timeout=PATIENCE_S) == Resume(4, 7, young.at_ms)
    with pytest.raises(queue.Empty):
        orders.get_nowait()


def test_each_reason_has_a_next_step():
    """Each reason for a hold has a next step for the operator, with the place in it."""
    assert set(REMEDIES) == set(get_args(HoldReason))
    assert all("{" not in text.format(topic="orders", partition=3) for text in REMEDIES.values())


def test_a_fence_is_heeded_until_it_is_lifted(place: Place):
    """A fence refuses its pipeline at a start and later; those of other applications, and broken ones, do not."""
    place.create()
    fence = {"format": 1, "at_ms": 1, "phase": "to_spark", "number": 1, "by": "anna@desk"}
    place.write("fence/desk/orders/*", fence)
    place.write("fence/other/trades/*", fence)
    place.write("fence/desk/quotes/*", {"format": 99})
    thread = place.thread()
    thread.await_fences()
    refusal = str(thread.fence("orders"))
    assert re.search(r"orders: .*phase to_spark, .*anna@desk.*handback orders", refusal)
    assert thread.fence("trades") is None
    assert thread.fence("quotes") is None
    place.write("fence/desk/orders/*", fence | {"phase": "workers"})
    until(lambda: thread.fence("orders") is None, "lifting the fence")
    place.write("fence/desk/trades/*", fence | {"phase": "a phase of a newer version"})
    until(lambda: thread.fence("trades") is not None, "the fence of a newer version")
    entries = place.control.read(APPLICATION)
    assert entries is not None
    assert {name: each.is_up for name, each in entries.fences.items()} == {"orders": False, "trades": True}


def test_a_fence_in_the_marks_counts_until_a_later_one_is_read(place: Place):
    """A worker may find a fence in its marks first; an older one than is known changes nothing."""
    place.create()
    thread = place.thread()
    thread.await_fences()
    moved = Fence(at_ms=5, phase="moved", number=0, moved_to="orders_12", offsets={0: 7})
    thread.learn_fence("orders", moved)
    thread.learn_fence("orders", Fence(at_ms=4, phase="resharding", number=0, moved_to="orders_12"))
    assert thread.fence_of("orders") == moved
    place.write("fence/desk/orders/*", {"format": 1, "at_ms": 6, "phase": "workers", "number": 0})
    until(lambda: thread.fence("orders") is None, "the fence of the control topic")


def test_no_pipeline_starts_while_kafka_is_silent(monkeypatch):
    """Without an answer nothing is known of any fence, so a pipeline waits for Kafka instead of merging."""
    monkeypatch.setattr(control_thread, "_LOOK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        thread = ControlThread({"bootstrap.servers": address}, APPLICATION)
        thread.start()
        try:
            for _ in range(2):
                with pytest.raises(BrokerUnavailable, match="another engine merges"):
                    thread.await_fences()
            assert not thread.has_looked
        finally:
            thread.stop()


def test_without_the_topic_no_pipeline_is_refused(place: Place):
    """A pipeline without a control topic starts as soon as that is known."""
    thread = place.thread()
    thread.await_fences()
    assert thread.has_looked
    assert thread.fence("orders") is None
