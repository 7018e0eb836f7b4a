"""Tests of health: when a process is alive, when it is ready, and how its status reads."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import BrokerUnavailable, Stop, TopicFenced
from processor.hosting.pipeline import Pipeline
from processor.installation.hold import Hold
from processor.runtime.loop.task_reports import SETTLING_S, PipelineReport
from processor.runtime.task_state import TaskState
from processor.runtime.worker.health import ALIVE_S, FAULT_S, Health, serve
from processor.runtime.worker.supervision import PipelineState, Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = TopicConfig()
NOW_MS = 1_000_000_000
RUNNING, RESTORING = TaskState.RUNNING, TaskState.RESTORING


def idle(_pipeline: Pipeline, stop: threading.Event, _is_running: Any) -> None:
    """Run a pipeline that does nothing."""
    stop.wait()


class Process:
    """A process with two pipelines, whose clocks and facts the test sets."""

    def __init__(self) -> None:
        self.now_s, self.away_s = 50.0 - SETTLING_S, 0.0
        self.reports = {name: PipelineReport(lambda: self.now_s) for name in ("orders", "trades")}
        self.orders, self.trades = (
            Supervised(Pipeline.of(DeltaMerge, TOPIC, name=name, topic=TOPIC), idle) for name in ("orders", "trades")
        )
        for pipeline in (self.orders, self.trades):
            pipeline.state = PipelineState.RUNNING
            self.reports[pipeline.pipeline.name].joined(True)
        self.now_s = 50.0
        self.health = Health(
            "worker-0",
            [self.orders, self.trades],
            self.reports,
            clock_s=lambda: self.now_s,
            now_ms=lambda: NOW_MS,
            away_s=lambda: self.away_s,
        )

    def show(self, *states: TaskState, remaining: dict[int, int] | None = None, holds: dict[int, Hold] | None = None):
        """Report the tasks of `orders`, each with a lag of 5 records."""
        lags = dict.fromkeys(range(len(states)), 5)
        self.reports["orders"].update(dict(enumerate(states)), remaining or {}, holds or {}, lags)


def hold(age_s: float) -> Hold:
    """A hold of this age."""
    return Hold("registry", "the registry does not answer", 7, NOW_MS - int(age_s * 1000), 2, 0.0)


@pytest.fixture
def process() -> Process:
    """A process that is alive and ready."""
    return Process()


def test_a_process_whose_tasks_all_run_is_ready(process: Process) -> None:
    """A process is ready with all its partitions running, and also as a member without any partition."""
    process.show(RUNNING, RUNNING)
    assert process.health.unready() == []
    assert process.health.dead() == []


@pytest.mark.parametrize("state", [TaskState.CREATED, RESTORING, TaskState.HELD])
def test_a_process_is_unready_while_a_partition_does_not_run(process: Process, state: TaskState) -> None:
    """One partition that waits for its restore is enough."""
    process.show(RUNNING, state)
    assert process.health.unready() == [f"orders: of 2 partitions 1 {state.value}"]


def test_a_process_is_unready_until_its_group_has_answered(process: Process) -> None:
    """A process without partitions may be one that waits for its assignment."""
    process.reports["trades"].clear()
    assert process.health.unready() == ["trades: joining its group"]


def test_a_new_member_is_unready_until_the_group_has_given_it_partitions(process: Process) -> None:
    """The first round of a cooperative rebalance assigns nothing to a new member; one that stays without is ready."""
    process.reports["orders"].clear()
    process.reports["orders"].joined(True)
    assert process.health.unready() == ["orders: waiting for its first partitions"]
    process.now_s += SETTLING_S
    assert process.health.unready() == []


def test_a_new_member_with_running_partitions_is_ready_at_once(process: Process) -> None:
    """Only a member without partitions waits for more."""
    process.reports["orders"].clear()
    process.reports["orders"].joined(True)
    process.show(RUNNING)
    assert process.health.unready() == []


@pytest.mark.parametrize("state", [TaskState.HELD, RESTORING])
def test_a_partition_that_has_been_held_for_long_keeps_nobody_unready(process: Process, state: TaskState) -> None:
    """A new hold makes the process unready; one of more than a minute does not, also during its retries."""
    process.show(RUNNING, state, holds={1: hold(FAULT_S - 1)})
    assert process.health.unready() != []
    process.show(RUNNING, state, holds={1: hold(FAULT_S + 1)})
    assert process.health.unready() == []


def test_a_pipeline_that_has_failed_for_long_keeps_nobody_unready(process: Process, monkeypatch) -> None:
    """The other pipelines go on, and a new process could not mend the fault."""
    process.orders._failed(Stop("orders.sow is gone"))
    assert process.health.unready() == ["orders: failed: orders.sow is gone"]
    monkeypatch.setattr(Supervised, "fault_s", FAULT_S + 1)
    assert process.health.unready() == []


def test_an_outage_of_kafka_makes_unready_and_not_dead(process: Process) -> None:
    """Restarts mend no outage, however long it takes."""
    process.away_s = 3600.0
    process.orders._failed(BrokerUnavailable("no broker"))
    process.orders._failed(BrokerUnavailable("no broker"))
    assert process.orders.fault_s == 0.0
    assert process.health.unready() == ["Kafka has not answered for 3600 s", "orders: waiting for Kafka"]
    assert process.health.dead() == []


def test_a_topic_that_spark_merges_keeps_nobody_unready(process: Process) -> None:
    """A fence may stand for days."""
    process.orders._failed(TopicFenced("Spark merges orders"))
    assert process.orders.state is PipelineState.STARTING
    assert process.health.unready() == []


def test_a_stuck_main_thread_is_dead(process: Process) -> None:
    """The main thread turns five times a second; half a minute without a turn is the limit."""
    process.now_s += ALIVE_S
    assert process.health.dead() == []
    process.now_s += 1
    assert process.health.dead() == ["the main thread has been stuck for 31 s"]
    process.health.turned()
    assert process.health.dead() == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_ended_thread_is_dead(process: Process) -> None:
    """A thread that ends by itself never comes back."""
    process.orders._run_once = lambda *_: (_ for _ in ()).throw(SystemExit)
    process.orders.thread.start()
    process.orders.thread.join()
    assert process.health.dead() == ["the thread of orders has ended"]


def test_a_stopping_process_is_alive_and_unready(process: Process) -> None:
    """The deadline of its stop is the process's own; no probe may cut it short."""
    process.health.stopping()
    process.now_s += 1000
    assert process.health.unready() == ["stopping"]
    assert process.health.dead() == []


@pytest.fixture
def url(process: Process) -> Iterator[str]:
    """The address of the process's pages."""
    server = serve(0, process.health, host="127.0.0.1")
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def get(url: str) -> tuple[int, str]:
    """The status and the text of a page."""
    try:
        with urllib.request.urlopen(url, timeout=100) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_pages_tell_alive_from_ready(process: Process, url: str) -> None:
    """`/livez` and `/readyz` answer 200 or 503 with the reasons; the metrics have one path, and others do not exist."""
    process.show(RESTORING)
    assert get(f"{url}/livez") == (200, "ok\n")
    assert get(f"{url}/readyz") == (503, "orders: of 1 partitions 1 restoring\n")
    process.show(RUNNING)
    assert get(f"{url}/readyz") == (200, "ok\n")
    process.now_s += ALIVE_S + 1
    assert get(f"{url}/livez") == (503, "the main thread has been stuck for 31 s\n")
    status, text = get(f"{url}/metrics")
    assert status == 200
    assert "sowstream_kafka_unreachable_seconds" in text
    assert [get(f"{url}{path}")[0] for path in ("/", "/healthz", "/metricsx", "/livez/")] == [404] * 4


def test_status_page_has_each_task(process: Process, url: str) -> None:
    """The status has state, lag, restore progress and hold of each task, and the reasons against readiness."""
    process.show(RUNNING, RESTORING, TaskState.HELD, remaining={1: 40}, holds={2: hold(5)})
    status, text = get(f"{url}/status")
    page = json.loads(text)
    assert status == 200
    assert (page["process"], page["is_ready"]) == ("worker-0", False)
    assert page["reasons"] == ["orders: of 3 partitions 1 held, 1 restoring"]
    orders, trades = page["pipelines"]
    assert (orders["name"], orders["state"], orders["is_member"]) == ("orders", "running", True)
    running, restoring, held = orders["partitions"]
    assert running == {"partition": 0, "state": "running", "lag": 5, "restore": None, "held": None}
    assert restoring["restore"] == {"done": 0, "total": 40, "remaining_s": None}
    assert held["held"]["reason"] == "registry"
    assert held["held"]["to_do"] == "look at the schema registry; it goes on by itself"
    assert trades["partitions"] == []


def test_pages_are_served_over_ipv6_too(process: Process) -> None:
    """Without a host, the pages answer on both protocols, as probes in IPv6-only clusters need."""
    server = serve(0, process.health)
    for host in ("127.0.0.1", "[::1]"):
        assert get(f"http://{host}:{server.port}/livez") == (200, "ok\n")
    server.close()
