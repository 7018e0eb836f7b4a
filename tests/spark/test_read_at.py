from __future__ import annotations

import datetime as dt

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_integration import read_sow
from spark_integration.read import as_of
from tests.spark.history import History

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def history(bootstrap: str, unique: str) -> History:
    """A family of topics for one test, not yet created."""
    return History(unique, bootstrap)


def table(spark, history, **arguments):
    """The values of the table by key."""
    rows = read_sow(spark, history.name, options=history.options, **arguments).select("_sow.sow_key", "value").collect()
    return {row["sow_key"]: row["value"] for row in rows}


def refused(spark, history, said, **arguments) -> None:
    """Expect that the read is refused at the call with this sentence."""
    with pytest.raises(ConfigurationError, match=said):
        read_sow(spark, history.name, options=history.options, **arguments)


def test_a_moment_shows_the_table_just_before_it(spark, history) -> None:
    """A read at a moment shows records deleted later, but none from that millisecond on, and no expired ones."""
    history.create("sow", 2)
    history.write("sow", ("a", "1"), ("b", "1"), at=NOW - 3 * HOUR)
    due = str(round((NOW - HOUR).timestamp() * 1000))
    history.write("sow", ("late", "1"), ("later", "1"), at=NOW - 3 * HOUR, partition=1, headers={"expires_at": due})
    history.write("sow", ("a", "2"), at=NOW - 2 * HOUR)
    history.write("sow", ("b", None), ("a", "3"), at=NOW - HOUR)
    at = NOW - 2 * HOUR
    assert table(spark, history, at=at) == {"a": "1", "b": "1", "late": "1", "later": "1"}
    at += dt.timedelta(milliseconds=1)
    assert table(spark, history, at=at.astimezone(dt.timezone(5 * HOUR))) == {
        "a": "2", "b": "1", "late": "1", "later": "1"
    }  # fmt: skip
    assert table(spark, history, at=NOW - HOUR) == {"a": "2", "b": "1"}


def test_offsets_show_the_table_before_them(spark, history) -> None:
    """A read at offsets shows the records before them in each partition, also those that workers expired later."""
    history.create("sow", 2)
    history.write("sow", ("a", "1"), ("a", "2"), ("a", "3"))
    history.write("sow", ("b", "1"), ("b", None), partition=1, headers={"expires_at": "1"})
    assert table(spark, history, at={0: 2, 1: 1}) == {"a": "2", "b": "1"}
    assert table(spark, history, at={0: 1, 1: 0}) == {"a": "1"}


def test_a_topic_that_is_empty_gives_an_empty_table(spark, history) -> None:
    """An empty topic is an empty table, without `at` and at a moment."""
    history.create("sow", 2)
    assert table(spark, history) == table(spark, history, at=NOW) == {}


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (dt.datetime(2026, 1, 1), r"at=2026-01-01T00:00:00 has no time zone.*at\.replace\(tzinfo"),  # noqa: DTZ001
        (NOW + 24 * HOUR, "is in the future.*leave `at` out"),
        ("yesterday", "at is a str; give a datetime with a time zone, or the ending offset"),
        (NOW - 9 * HOUR, r"at is before the oldest record of .*\.sow .*would be empty without saying so"),
        (dt.datetime(1960, 1, 1, tzinfo=dt.UTC), "at is before the oldest record of"),
        ({0: 0, 1: 0}, "at is before the oldest record of"),
        ({0: 1}, r"at lacks partition 1 of .*\.sow.*name all 2"),
        ({0: 1, 1: 0, 7: 0}, r"at names partition 7, which .*\.sow does not have: it has 0 to 1"),
        ({0: 99, 1: 0}, r"at says 99 for partition 0 of .*\.sow, which ends at 1"),
        ({0: -2, 1: 0}, "at says 0: -2; give partition numbers and the offset"),
        ({"0": 1, 1: 0}, "at says '0': 1; give partition numbers and the offset"),
    ],
)
def test_a_cut_that_is_none_is_refused(spark, history, at, said) -> None:
    """An invalid `at` is refused at the call, with the reason and a remedy."""
    history.create("sow", 2)
    history.write("sow", ("a", "1"), at=NOW - 8 * HOUR)
    refused(spark, history, said, at=at)


def test_a_topic_that_is_not_there_is_refused(spark, history) -> None:
    """A missing topic is refused at the call, with its Kafka name."""
    refused(spark, history, rf"the Kafka topic {history.name}\.sow does not exist; .*sowstream topics apply")


def test_deleted_records_cannot_be_read(spark, history) -> None:
    """An end before the oldest record is refused, by offsets and by time, as those records are gone."""
    history.create("sow")
    history.write("sow", ("a", "1"), ("b", "1"), ("c", "1"), at=NOW - 2 * HOUR)
    history.write("sow", ("a", "2"), at=NOW - HOUR)
    admin = AdminClient(history.client)
    for done in admin.delete_records([TopicPartition(f"{history.name}.sow", 0, 3)]).values():
        done.result(120)
    for at in ({0: 2}, {0: 3}, NOW - 2 * HOUR, NOW - HOUR):
        refused(spark, history, r"before the oldest records that .* still has \(partition 0: offset 3\)", at=at)
    assert table(spark, history, at={0: 4}) == {"a": "2"}


def test_an_end_before_compaction_is_refused_unless_allowed(spark, history) -> None:
    """An end older than `min.compaction.lag.ms` is refused unless allowed, as compaction may have removed records."""
    history.create("sow", cleanup__policy="compact", min__compaction__lag__ms="5400000")
    history.write("sow", ("a", "1"), at=NOW - 3 * HOUR)
    history.write("sow", ("a", "2"), at=NOW - 2 * HOUR)
    history.write("sow", ("a", "3"), at=NOW - HOUR)
    said = r"further back than .*\.sow is sure to be whole.*min\.compaction\.lag\.ms of 5,400,000.*allow_compacted=True"
    for at in (NOW - 2 * HOUR, {0: 1}):
        refused(spark, history, said, at=at)
    assert table(spark, history, at={0: 1}, allow_compacted=True) == {"a": "1"}
    # Nothing that may be cleaned lies behind these.
    for at in (NOW - HOUR, {0: 2}):
        read_sow(spark, history.name, options=history.options, at=at)
    assert table(spark, history, at=NOW - 1.6 * HOUR) == {"a": "2"}


def test_a_transaction_that_is_open_before_the_cut_is_waited_for(spark, history, monkeypatch) -> None:
    """The read waits for an open transaction before the end, and is refused after a timeout."""
    history.create("sow")
    history.write("sow", ("a", "1"), at=NOW - 2 * HOUR)
    producer = Producer(history.client | {"transactional.id": history.name, "linger.ms": 0})
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(f"{history.name}.sow", "2", "a", timestamp=round((NOW - HOUR).timestamp() * 1000))
    assert producer.flush(120) == 0
    monkeypatch.setattr(as_of, "_OPEN_TIMEOUT_S", 0.2)
    refused(spark, history, r"a transaction of .*\.sow is still open before the cut \(partition 0: offset 1\)", at=NOW)
    assert table(spark, history, at=NOW - HOUR) == {"a": "1"}
    producer.commit_transaction(120)
    assert table(spark, history, at=NOW) == {"a": "2"}


def test_options_that_would_cut_unseen_are_refused(spark, history) -> None:
    """Spark's options for an end are refused, as only `at` is checked before the read."""
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigurationError, match=f"option '{name}' cannot be given: the function's `at`"):
            read_sow(spark, history.name, options=history.options | {name: "latest"})
