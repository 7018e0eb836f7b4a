"""Requests to a cluster about topics that were just created, or that do not exist."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic

from processor.errors import BrokerUnavailable, Stop
from processor.kafka.admin.admin import Admin
from processor.topics.family import TopicSpec
from processor.trial.broker import EmbeddedBroker
from tests.programs.faults.broker.cluster import Cluster
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.broker


def test_a_topic_that_is_being_made_is_waited_for(bootstrap: str, unique: str) -> None:
    """A topic that is being created has no leaders and looks like a missing one; the request waits for them."""
    admin, topic = Admin({"bootstrap.servers": bootstrap}), f"{unique}.sow"
    later = threading.Timer(0.3, admin.create, [[TopicSpec(topic, "sow", 2, {})]])
    later.start()
    try:
        assert admin.end_offsets(topic, [0, 1]) == {0: 0, 1: 0}
    finally:
        later.join()
        admin.delete([topic])


def test_one_that_is_not_there_is_told_soon_and_not_made(bootstrap: str, unique: str) -> None:
    """A request for a misspelt topic fails soon, and does not create the topic."""
    admin = Admin({"bootstrap.servers": bootstrap})
    began_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(Stop, match=f"asking for the ends of {unique}.sow: .*leader"):
            admin.end_offsets(f"{unique}.sow", [0], timeout_s=600)
    assert time.monotonic() - began_s < 100


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.partitions_of("orders.sow"),
        lambda admin: admin.describe_topics(["orders.sow"]),
        lambda admin: admin.topic_config(["orders.sow"]),
        lambda admin: admin.end_offsets("orders.sow", [0]),
        lambda admin: admin.create([TopicSpec("orders.sow", "sow", 2, {})]),
        lambda admin: admin.delete(["orders.sow"]),
    ],
)
def test_the_first_request_waits_for_kafka_as_its_settings_say(ask: Callable[[Admin], object]) -> None:
    """Until a broker has answered, a request without a limit of its own looks for one, and reports that none does."""
    with pytest.raises(BrokerUnavailable, match=r"looking at the cluster at 127\.0\.0\.1:1: "):
        ask(Admin({"bootstrap.servers": "127.0.0.1:1"}, 0.01))


class BlindClient:
    """A client that looks for leaders only on request, as librdkafka does after it once saw none."""

    def __init__(self) -> None:
        self.looked_at: list[str | None] = []

    def list_offsets(self, asked: Iterable[TopicPartition], **_: object) -> dict[TopicPartition, Future[Any]]:
        """One answer for each partition."""
        answers: dict[TopicPartition, Future[Any]] = {}
        for place in asked:
            answers[place] = Future()
            if self.looked_at:
                answers[place].set_result(SimpleNamespace(offset=7))
            else:
                answers[place].set_exception(KafkaException(KafkaError(KafkaError._NOENT)))
        return answers

    def list_topics(self, topic: str | None, **_: object) -> None:
        """The leaders are known from now on."""
        self.looked_at.append(topic)


def test_a_client_that_has_seen_no_leader_is_made_to_look_again() -> None:
    """A client without leaders is made to list all topics, because a request for one topic may create it."""
    admin, client = Admin({"bootstrap.servers": "localhost:1"}), BlindClient()
    admin._client = cast("Any", client)
    assert admin.end_offsets("orders.sow", [0, 1], timeout_s=15.0) == {0: 7, 1: 7}
    assert client.looked_at == [None]


class SeveralBrokers(BlindClient):
    """A client of three brokers that keeps the topics it is to create."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[NewTopic] = []

    def list_topics(self, topic: str | None = None, **_: object) -> SimpleNamespace:  # type: ignore[override]
        """The brokers, and no topics."""
        self.looked_at.append(topic)
        return SimpleNamespace(brokers={n: SimpleNamespace(host="kafka", port=n) for n in range(3)}, topics={})

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, Future[None]]:
        """Success for each topic."""
        self.created += topics
        answers: dict[str, Future[None]] = {topic.topic: Future() for topic in topics}
        for answer in answers.values():
            answer.set_result(None)
        return answers


def test_a_new_topic_survives_the_loss_of_a_broker() -> None:
    """Of several brokers three have a copy, two of them before a record counts, by each command."""
    admin, client = Admin({"bootstrap.servers": "localhost:1"}), SeveralBrokers()
    admin._client = cast("Any", client)
    assert admin.create([TopicSpec("totals.mark", "mark", 2, {})]) == ["totals.mark"]
    [topic] = client.created
    assert (topic.num_partitions, topic.replication_factor) == (2, 3)
    assert topic.config == {"min.insync.replicas": "2"}


@pytest.mark.long
def test_a_broker_that_was_away_for_a_moment_has_leaders_again() -> None:
    """A restarted broker is fenced until the controller accepts it; a client that asked too early recovers."""
    with EmbeddedBroker() as broker:
        topic = "orders.sow"
        Admin({"bootstrap.servers": broker.bootstrap}).create([TopicSpec(topic, "sow", 2, {})])
        ours = psutil.Process().children(recursive=True)
        [java] = [child for child in ours if "java" in child.name() and str(broker.data_dir) in str(child.cmdline())]
        java.suspend()
        time.sleep(10)  # Longer than its session with the controller.
        java.resume()
        for _ in range(100):
            assert Admin({"bootstrap.servers": broker.bootstrap}).end_offsets(topic, [0, 1]) == {0: 0, 1: 0}


@pytest.mark.long
def test_a_dead_broker_takes_no_core(tmp_path: Path) -> None:
    """While requests wait for one of three brokers that is killed, the client tries to connect with a back-off."""
    with Cluster(tmp_path) as cluster:
        admin = Admin({"bootstrap.servers": cluster.bootstrap})
        admin.create([TopicSpec("waiting", "sow", 3, {})])
        admin.describe_topics(["waiting"])
        victim = cluster.leader("waiting", 0)
        cluster.brokers[victim].kill()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        questions = admin.ask_offsets("waiting", [0], "end", 5.0)
        with suppress(KafkaException):  # Nothing, if another broker leads already.
            questions[0].result()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    # Two threads that wake each other do so 50,000 times a second on a core of their own.
    assert switches < 10_000


def test_the_time_for_which_positions_are_kept_is_that_of_the_brokers(bootstrap: str) -> None:
    """Kafka's default is seven days, in milliseconds; it also counts where the settings of brokers cannot be seen."""
    admin = Admin({"bootstrap.servers": bootstrap})
    assert admin._offsets_kept_ms(PATIENCE_S) == 7 * 86_400_000
    admin._ask_broker = lambda names, _timeout_s: dict.fromkeys(names, failed(FORBIDDEN))  # type: ignore[method-assign]
    assert admin._offsets_kept_ms(PATIENCE_S) == 7 * 86_400_000


FORBIDDEN = KafkaError.CLUSTER_AUTHORIZATION_FAILED


def failed(code: int) -> Future[Any]:
    """An answer that is an error."""
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def done(answer: object) -> Future[Any]:
    """An answer."""
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


def test_the_settings_of_brokers_come_from_any_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away is passed over; the default is not taken where none answers."""
    monkeypatch.setattr("processor.kafka.admin.admin.TRY_S", 0.1)
    admin = Admin({"bootstrap.servers": "localhost:1"})
    cluster = done(SimpleNamespace(nodes=[SimpleNamespace(id=number) for number in (1, 2)]))
    admin._client = cast("Any", SimpleNamespace(describe_cluster=lambda **_: cluster))
    monkeypatch.setattr(admin.renewal, "unanswered", lambda _question: None)
    entries = {"offsets.retention.minutes": SimpleNamespace(value="60")}
    answers = {"1": failed(KafkaError._TIMED_OUT), "2": done(entries)}
    monkeypatch.setattr(admin, "_ask_broker", lambda names, _timeout_s: {name: answers[name] for name in names})
    assert admin._offsets_kept_ms(PATIENCE_S) == 3_600_000
    answers["2"] = answers["1"]
    with pytest.raises(BrokerUnavailable, match="reading the settings of a broker"):
        admin._offsets_kept_ms(PATIENCE_S)
    answers["1"] = failed(KafkaError.INVALID_REQUEST)
    with pytest.raises(Stop, match="reading the settings of a broker"):
        admin._offsets_kept_ms(PATIENCE_S)
