"""Fixtures of the Spark tests: one small session, and topics with records in the form of workers."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import next_message, until_described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4


_HERE = Path(__file__).parent
_START_TIMEOUT_S = 600
"""Longest time of a test with Spark, unless it says another: its first start fetches the connector."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test with Spark more time, and let it pass with open sockets.

    PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    """
    for item in items:
        has_spark = item.get_closest_marker("spark") is not None or "spark" in getattr(item, "fixturenames", ())
        if not has_spark or not item.path.is_relative_to(_HERE):
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_START_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spark's temporary files are below pytest's directory, so that killed tests leave none in `/tmp`."""
    directory = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(directory))
        patch.setenv("SPARK_SUBMIT_OPTS", f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={directory}")
        yield


@pytest.fixture(scope="module", autouse=True)
def _sockets_of_py4j_are_collected() -> Iterator[None]:
    """PySpark leaves connections to the JVM to the garbage collector; its warnings would fail a test at random."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _merges_do_not_collect_the_tests() -> Iterator[None]:
    """A merge in this process leaves the garbage collector alone.

    In a process of Spark it collects first, which takes milliseconds, and freezes and thaws all objects. Here it
    would walk the 15,000 tests each time: half a second for each of a thousand merges.
    """
    pytest.importorskip("pyarrow")
    from spark_integration.merge.batch import fold

    with pytest.MonkeyPatch.context() as patch:
        nothing = dict.fromkeys(("collect", "freeze", "unfreeze", "disable", "enable"), lambda: None)
        patch.setattr(fold, "gc", SimpleNamespace(isenabled=gc.isenabled, get_freeze_count=lambda: 0, **nothing))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, as it takes seconds to start."""
    from spark_integration import spark_session
    from spark_integration.session import NoJava, require_java

    try:
        require_java()
    except NoJava as error:
        pytest.skip(str(error))
    session = spark_session(
        "sowstream-tests",
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            # A machine that stands still for a while is no dead executor.
            "spark.network.timeout": "900s",
            "spark.executor.heartbeatInterval": "60s",
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Write(Protocol):
    """The function that writes one record of a transaction."""

    def __call__(self, key: str, value: str | None, **headers: str) -> None:
        """Write a key, JSON text or None for a tombstone, and the headers, and wait until the broker has them."""


class Family:
    """The topics of one family on the broker, with methods that write as workers do."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.options = {"kafka.bootstrap.servers": bootstrap}
        self._client = {"bootstrap.servers": bootstrap}

    def create(self, *roles: str) -> None:
        """Create the topics, and wait until they exist."""
        # Held in a variable: a client that is collected takes its answers with it.
        admin = AdminClient(self._client)
        topics = [NewTopic(f"{self.name}.{role}", PARTITIONS, 1) for role in roles]
        made = admin.create_topics(topics)
        for each in made.values():
            each.result(120)
        until_described(admin, [*made])

    @contextmanager
    def transaction(self, role: str, *, abort: bool = False) -> Iterator[Write]:
        """Write records in a Kafka transaction that ends with the block, committed or aborted."""
        producer = Producer(
            self._client | {"transactional.id": f"{self.name}.{role}", "partitioner": "murmur2_random", "linger.ms": 0}
        )
        producer.init_transactions(120)
        producer.begin_transaction()

        def write(key: str, value: str | None, **headers: str) -> None:
            producer.produce(
                f"{self.name}.{role}", value, key, headers={n: text.encode() for n, text in headers.items()}
            )
            assert producer.flush(120) == 0, "the broker did not take the record in time"

        try:
            yield write
        finally:
            producer.abort_transaction(120) if abort else producer.commit_transaction(120)

    def publish_by_key(self, role: str, keys: list[bytes]) -> None:
        """Write empty objects under these keys, to the partitions that the Python producers choose."""
        producer = Producer(self._client | {"partitioner": "murmur2_random"})
        for key in keys:
            producer.produce(f"{self.name}.{role}", b"{}", key)
        assert producer.flush(120) == 0

    def read(self, role: str, partitions: int = PARTITIONS) -> list[Message]:
        """Every committed record of a topic, partition by partition."""
        topic = f"{self.name}.{role}"
        consumer = Consumer(
            self._client
            | {
                "group.id": f"{self.name}.reader",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
            return list(_until_ends(consumer, partitions))
        finally:
            consumer.close()


def _until_ends(consumer: Consumer, partitions: int) -> Iterator[Message]:
    ends = 0
    while ends < partitions:
        message = next_message(consumer)
        if message.error() is None:
            yield message
        elif message.error().name() == "_PARTITION_EOF":
            ends += 1
        else:
            raise KafkaException(message.error())


@pytest.fixture
def family(bootstrap: str, unique: str) -> Family:
    """A family of topics for one test, not yet created."""
    return Family(unique, bootstrap)
