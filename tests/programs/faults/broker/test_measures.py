"""The measuring tools of the scenarios, their crew, and the comparison with the promised limits."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import prometheus_client
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.endtoend.world import Worker
from tests.programs.faults.broker import questions
from tests.programs.faults.broker.crew import Crew
from tests.programs.faults.broker.questions import active_controller, transactional_ids
from tests.programs.faults.broker.roles import BrokerOutage, Disturbed, refuse
from tests.programs.faults.broker.scrape import quiet_ports, samples
from tests.programs.faults.broker.silence import Silence
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.endtoend.world import World


GOOD = BrokerOutage("controller", (1,), 9.0, 20.0, 3, 0, 0, is_over=True)


def test_the_longest_silence_is_the_worst_gap_which_may_still_last() -> None:
    """Each partition's longest gap is measured from a moment on, and a repeat by the second reader does not count."""
    silence, now_s = Silence("nobody:1", ["x"], 3), time.monotonic()
    arrivals = {0: [20.0, 19.9, 9.9, 0.0], 1: [20.0, 17.0, 0.0], 2: [20.0, 5.0]}
    for partition, ages_s in arrivals.items():
        for offset, age_s in enumerate(ages_s):
            silence._came(("x", partition), offset, now_s - age_s)
    silence._came(("x", 2), 1, now_s)
    silence._came(("x", 2), 0, now_s)
    longest = silence.longest_s("x", now_s - 18)
    assert longest == pytest.approx({0: 10, 1: 17, 2: 15}, abs=0.5)
    assert silence.longest_s("x", now_s - 18, after_s=now_s - 12) == pytest.approx({0: 9.9, 1: 12, 2: 7}, abs=0.5)
    assert silence.since("x", now_s - 15) == pytest.approx({0: 5.1, 1: 15, 2: 10})
    assert silence.since("x", now_s - 19.95) == pytest.approx({0: 0, 1: 2.95, 2: 14.95})
    silence._came(("x", 1), 3, now_s + 0.1)
    assert silence.since("x", now_s + 0.05) == {0: None, 1: 0.0, 2: None}
    assert silence.silent("x", for_s=4) == [2]
    assert silence.first("x", now_s - 25) == pytest.approx({0: 5, 1: 5, 2: 5})


@pytest.mark.broker
def test_an_uncommitted_record_does_not_end_a_silence(bootstrap: str, unique: str) -> None:
    """A record of an open transaction does not end the silence of its partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(120)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique})
    producer.init_transactions(120)
    with Silence(bootstrap, [unique], 1) as silence:

        def publish_again() -> bool:
            """Publish until the reader, which begins at the end and may miss the first records, has seen one."""
            producer.begin_transaction()
            producer.produce(unique, b"committed", partition=0)
            producer.commit_transaction(120)
            return silence.first(unique, 0.0)[0] is not None

        until(publish_again)
        producer.begin_transaction()
        producer.produce(unique, b"open", partition=0)
        producer.flush(120)
        until(lambda: silence.silent(unique, for_s=1.0) == [0])
        producer.commit_transaction(120)
        until(lambda: publish_again() and not silence.silent(unique, for_s=1.0))
        assert silence.longest_s(unique, 0.0)[0] > 0.9
    admin.delete_topics([unique])[unique].result(120)


@pytest.mark.broker
def test_a_broker_names_the_controller_and_its_transactional_ids(
    bootstrap: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone broker names itself as the controller and as the coordinator of a transactional id."""
    monkeypatch.setattr(questions, "_TIMEOUT_S", 60.0)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{unique}.some.worker"})
    producer.init_transactions(120)
    port = int(bootstrap.rpartition(":")[2])
    assert active_controller(port) == 1
    assert f"{unique}.some.worker" in transactional_ids(port)


def test_metrics_are_read_with_their_labels() -> None:
    """Samples of a served metrics page have their labels and values."""
    (port,) = quiet_ports(1)
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Gauge("held", "Partitions.", ["processor", "reason"], registry=registry).labels("x", "r").set(2)
    server, thread = prometheus_client.start_http_server(port, "127.0.0.1", registry=registry)
    try:
        assert ("held", {"processor": "x", "reason": "r"}, 2.0) in samples(port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    "change", [{"delta_s": 25.1}, {"ended": 1}, {"wiped": 1}, {"is_over": False}], ids=lambda change: next(iter(change))
)
def test_a_kill_that_breaks_a_promise_is_reported(change: dict[str, float]) -> None:
    """An outage is refused for too long a silence, an ended worker, a wiped state, or a partition that stays silent."""
    refuse([GOOD, GOOD], 25.0, [])
    with pytest.raises(Disturbed, match="1 of 2 outages"):
        refuse([GOOD, GOOD._replace(**change)], 25.0, [])


def test_a_worker_that_ended_between_two_kills_is_reported() -> None:
    """A worker that ended at any time is reported, also between two outages."""
    with pytest.raises(Disturbed, match="1 workers ended"):
        refuse([GOOD], 25.0, ["Kafka does not answer"])


class _Place(SimpleNamespace):
    """A world without a broker, whose workers end at once with exit code 1 and no message for people."""

    def start(self, *, env: Mapping[str, str] | None = None) -> Worker:
        worker = Worker(cast("World", self), "worker", [], ["tests.programs.faults.no_such_module"], env or {})
        self.workers.append(worker)
        return worker


def test_a_worker_that_ends_after_the_last_check_is_reported(tmp_path: Path) -> None:
    """A crew reports a worker that ends between the supervisor's last check and the end of the block."""
    place: Any = _Place(directory=tmp_path, workers=[], file=tmp_path / "none")
    crew = Crew(place)
    crew._over.set()  # The supervisor no longer checks.
    with pytest.raises(AssertionError, match="exit code 1"), crew:
        place.workers[0].process.wait()
