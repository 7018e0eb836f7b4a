from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from processor.builtin.delta_merge.deduplication import Deduplicator
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.record import Record
from processor.store.marks import TransactionalMarks
from processor.wire.command import SEQUENCE_MAX, CommandReader

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import functions as F  # noqa: N812

from spark_integration.foundation.pyspark_private import MicroBatch
from spark_integration.publish.batch_sender import CLIENT, _Streams, recipe, sender
from spark_integration.publish.publish import Sending, publish_options
from spark_integration.publish.sequence import BATCH_MAX, PLANNED_FROM_MS, PLANNED_ROWS_BITS, Sender, numbered
from tests.spark.published import NOWHERE, sent

spark_test = [
    pytest.mark.spark,
]


_HEADERS = "CAST(array() AS array<struct<key: string, value: binary>>)"


_RECORD = Record(b"1", b"{}", None, 0, 0)


def _deduplicator() -> Deduplicator:
    """The numbers that a worker knows, with the limit of jumps that a topic has by default."""
    return Deduplicator(TransactionalMarks(), b"orders.publish/", TopicConfig().sequence_jump_max)


def _marked(test):
    for mark in spark_test:
        test = mark(test)
    return test


def _numbers(records) -> set:
    return {(key, value, headers["client"], int(headers["sequence"])) for key, value, headers in records}


@_marked
def test_rows_have_the_same_numbers_however_they_come(spark) -> None:
    """Order and partitioning of the rows, and the session's settings, do not change the sequences."""
    rows = spark.range(500).select((F.col("id") % 40).alias("id"), F.col("id").alias("n"), (F.col("id") % 7).alias("x"))
    way = {"columns": ["n", "x"], "order_by": ["n"], "batch_id": 3, "writers": 5}
    first = sent(rows, **way)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        again = sent(rows.orderBy(F.col("n").desc()).repartition(3), **way)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.unset("spark.sql.adaptive.enabled")
    assert _numbers(again) == _numbers(first)
    assert len({(client, number) for _, _, client, number in _numbers(first)}) == 500


@_marked
def test_a_writer_sends_in_the_order_of_its_numbers(spark) -> None:
    """Each writer's rows are sent by one task with growing sequences, those of one key in the order of `order_by`."""
    rows = spark.range(500).select((F.col("id") % 40).alias("id"), (-F.col("id")).alias("n"))
    records = sent(rows.repartition(3), columns=["n"], order_by=["n"], batch_id=7, writers=16)
    by_client, by_key = defaultdict(list), defaultdict(list)
    for key, value, headers in records:
        by_client[headers["client"]].append(int(headers["sequence"]))
        by_key[key].append((headers["client"], int(value.split(b":")[-1][:-1])))
    for numbers in by_client.values():
        assert numbers == [(7 << 32) + number for number in range(1, len(numbers) + 1)]
    assert len(by_client) > 8
    for sent_of_key in by_key.values():
        assert len({client for client, _ in sent_of_key}) == 1
        assert sent_of_key == sorted(sent_of_key)


@_marked
def test_rows_without_an_order_are_refused(spark) -> None:
    """Two different rows of a key without an order fail the query, with the key and a remedy."""
    rows = spark.createDataFrame([("a", 1, 1), ("b", 1, 1), ("b", 1, 2)], "id STRING, t INT, n INT")
    for order_by in [[], ["t"]]:
        with pytest.raises(ConfigurationError, match=r"rows of the key b differ, .* order_by=\[\.\.\.\]"):
            sent(rows, columns=["n"], order_by=order_by)
    assert len(sent(rows, columns=["n"], order_by=["t", "n"])) == 3


@_marked
def test_rows_that_are_the_same_need_no_order(spark) -> None:
    """Equal rows are published twice without an order, as it makes no difference."""
    rows = spark.createDataFrame([("b", None, 2), ("b", None, 2)], "id STRING, t INT, n INT")
    assert len(sent(rows, columns=["n"], order_by=["t"])) == 2


@pytest.mark.parametrize("seed", range(50))
def test_attempts_that_end_early_lose_and_double_nothing(seed) -> None:
    """Workers merge every row once from attempts that each send the first part of one order, mixed in any way.

    A batch begins after one attempt of the previous one was complete; others of that may still be running.
    """
    print("seed", seed)
    rng = random.Random(seed)
    batches = [[(batch << 32) + number for number in range(1, rng.randrange(2, 9))] for batch in range(4)]
    log: list[int] = []
    going: list[list[int]] = []
    for batch in batches:
        whole = list(batch)
        going += [batch[: rng.randrange(len(batch))] for _ in range(rng.randrange(3))] + [whole]
        while whole:
            attempt = rng.choice([attempt for attempt in going if attempt])
            log.append(attempt.pop(0))
    while left := [attempt for attempt in going if attempt]:
        log.append(rng.choice(left).pop(0))
    sequences, read = _deduplicator(), CommandReader("delta_publish").read
    taken = []
    for number in log:
        request = read([("client", b"spark/1"), ("sequence", b"%d" % number)])
        if not sequences.is_duplicate(_RECORD, request):
            sequences.take(request)
            taken.append(number)
    assert taken == [number for batch in batches for number in batch]


@_marked
def test_batch_of_a_stream_has_the_same_name_whenever_it_is_done(spark, tmp_path) -> None:
    """A repeated batch with two calls repeats both client names; a new checkpoint has other names."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))

    def run(checkpoint: str, fails_in: int) -> list:
        seen = []

        def publish(batch, batch_id: int) -> None:
            for topic in ["orders", "orders", "trades"]:
                with sender(batch.sparkSession, topic, "way", None, None) as by:
                    seen.append((topic, by))
                    if batch_id == fails_in and len(seen) % 3 == 2:
                        raise RuntimeError("the calamity")

        query = (
            lines.writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - Spark's class for it is none of ours
            assert "the calamity" in str(error)  # noqa: PT017
        finally:
            query.stop()
        return [(str(query.id), *one) for one in seen]

    first = run("a", fails_in=1)
    again = run("a", fails_in=9)
    query_id = first[0][0]
    whole = [("orders", 0), ("orders", 1), ("trades", 0)]
    names = [(topic, f"spark/{query_id}/{call}/way") for topic, call in whole]
    assert [(topic, by.client) for _, topic, by in first] == names + names[:2]
    assert [(topic, by.client) for _, topic, by in again] == names * 2
    assert [by for _, _, by in first[3:]] == [by for _, _, by in again[:2]], "the same numbers as before"
    numbers = [by.batch_id for _, _, by in first[:3] + again]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3, "one for each batch"
    other = run("b", fails_in=9)
    assert {by.client for _, _, by in other}.isdisjoint(by.client for _, _, by in first)


@_marked
def test_a_checkpoint_that_was_set_back_publishes_its_rows_again(spark, tmp_path) -> None:
    """After a checkpoint was restored from a copy, batches with other rows have sequences that workers accept."""
    (tmp_path / "in").mkdir()
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    numbers: list[Sender] = []

    def publish(batch, batch_id: int) -> None:
        with sender(batch.sparkSession, "orders", "way", None, None) as by:
            numbers.append(by)

    def run(file: str) -> None:
        (tmp_path / "in" / file).write_text(f"{file}\n")
        writer = lines.writeStream.foreachBatch(publish).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run("0")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    run("1")
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "copy", tmp_path / "checkpoint")
    run("2")
    first, second, after = numbers
    assert first.client == second.client == after.client
    assert first.batch_id < second.batch_id < after.batch_id
    assert after.rows_bits == second.rows_bits == PLANNED_ROWS_BITS


class _Plans:
    """The times of planned batches, as Spark's log in the checkpoint has them, by both of its names for them."""

    def __init__(self, times: dict[int, int]) -> None:
        self._times = times

    def get(self, number: int):
        time_ms = self._times.get(number)
        offsets = SimpleNamespace(batchTimestampMs=lambda: time_ms)
        metadata = SimpleNamespace(get=lambda: offsets)
        if number % 2:
            plan = SimpleNamespace(metadataOpt=lambda: metadata)
        else:
            plan = SimpleNamespace(metadataOpt=_missing, metadata=lambda: metadata)
        return SimpleNamespace(isDefined=lambda: time_ms is not None, get=lambda: plan)


def _missing() -> None:
    raise Py4JError("method metadataOpt([]) does not exist")


@pytest.mark.parametrize("seed", range(20))
def test_a_clock_that_goes_back_drops_no_rows(seed, tmp_path) -> None:
    """Whenever the clock goes back and the query is started again, workers accept each batch, and each only once.

    Spark keeps the times of a few batches only, so the step is long gone from its log when the query starts again.
    """
    print("seed", seed)
    rng = random.Random(seed)
    kept = rng.choice([2, 5, 100])
    deduplicator, read = _deduplicator(), CommandReader("delta_publish").read
    clock_ms, times, streams, run = PLANNED_FROM_MS + 10**9, {}, _Streams(), 0
    for number in range(150):
        clock_ms += rng.choice([1, 1000, 60_000]) if rng.random() < 0.95 else -rng.randrange(3_600_000)
        times = {planned: ms for planned, ms in times.items() if planned > number - kept} | {number: clock_ms}
        for is_repeated in (False, True):
            if is_repeated or rng.random() < 0.3:  # Another process.
                streams, run = _Streams(), run + 1
            batch = MicroBatch("q", number, run, str(tmp_path), _Plans(times))
            by = streams.sender(None, "spark", batch, "orders", "way")
            sequence = b"%d" % ((by.batch_id << by.rows_bits) + 1)
            request = read([("client", by.client.encode()), ("sequence", sequence)])
            assert deduplicator.is_duplicate(_RECORD, request) is is_repeated, (by, is_repeated)
            if not is_repeated:
                deduplicator.take(request)


def test_an_epoch_costs_one_name_however_long_the_clock_is_behind(tmp_path) -> None:
    """All batches after the step have the same client name, which begins with the time of the first of them."""
    times = {number: PLANNED_FROM_MS + (10_000 if number == 0 else number) for number in range(50)}

    def clients(run: int, *numbers: int) -> list[str]:
        streams, plans = _Streams(), _Plans(times)
        batches = [MicroBatch("q", number, run, str(tmp_path), plans) for number in numbers]
        return [streams.sender(None, "spark", batch, "orders", "way").client for batch in batches]

    assert clients(1, *range(50)) == ["spark/q/0/way"] + [f"spark/q/0/way/{PLANNED_FROM_MS + 1}"] * 49
    assert clients(2, 49) == [f"spark/q/0/way/{PLANNED_FROM_MS + 1}"]


@_marked
def test_a_query_that_goes_on_by_a_clock_that_is_behind_has_names_of_its_own(spark, tmp_path) -> None:
    """A checkpoint with a batch of an hour ahead goes on under another name, also where Spark's log has lost it."""
    (tmp_path / "in").mkdir()
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    senders: list[Sender] = []

    def publish(batch, batch_id: int) -> None:
        with sender(batch.sparkSession, "orders", "way", None, None) as by:
            senders.append(by)

    def run(file: int) -> None:
        (tmp_path / "in" / f"{file}").write_text(f"{file}\n")
        writer = lines.writeStream.foreachBatch(publish).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1")
    try:
        run(0)
        _move_clock(tmp_path / "checkpoint" / "offsets" / "0", 3_600_000)
        for file in range(1, 5):
            run(file)
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")
    assert not (tmp_path / "checkpoint" / "offsets" / "0").exists(), "Spark's log has lost the step"
    before, *after = senders
    assert {by.client for by in after} == {f"{before.client}/{after[0].batch_id + PLANNED_FROM_MS}"}
    assert [by.batch_id for by in after] == sorted({by.batch_id for by in after})


def _move_clock(plan: Path, later_ms: int) -> None:
    """Change the time at which Spark planned a batch."""
    version, metadata, *offsets = plan.read_text().split("\n")
    planned = json.loads(metadata)
    planned["batchTimestampMs"] += later_ms
    plan.write_text("\n".join([version, json.dumps(planned), *offsets]))
    plan.with_name(f".{plan.name}.crc").unlink()


@_marked
def test_rows_beyond_the_numbers_of_a_client_have_another_one(spark) -> None:
    """A writer with more rows than a sequence can number has further client names, each with growing sequences."""
    rows = spark.range(10).select(
        F.lit("k").cast("binary").alias("key"), F.col("id").cast("string").cast("binary").alias("value"),
        F.expr(_HEADERS).alias("headers"), F.col("id").alias("place"),
    )  # fmt: skip
    records = numbered(rows, Sender("c", 5, rows_bits=2), writers=1).select("value", "headers").collect()
    found = [(row.value, *(header.value.decode() for header in row.headers)) for row in records]
    names = ["c/0"] * 3 + ["c/0.1"] * 4 + ["c/0.2"] * 3
    assert [client for _, client, _ in found] == names
    assert [int(sequence) - 20 for *_, sequence in found] == [1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert [int(value) for value, *_ in found] == list(range(10))


def test_the_time_of_planning_fits_a_sequence() -> None:
    """Times of planning until 2159 are accepted by workers as sequences, with every number of a row."""
    last_ms = PLANNED_FROM_MS + 2**42 - 1
    by = Sender.planned("c", last_ms)
    assert (by.batch_id << by.rows_bits) + 2**by.rows_bits - 1 == SEQUENCE_MAX
    assert dt.datetime.fromtimestamp(last_ms / 1000, dt.UTC).year == 2159


@_marked
def test_calls_outside_of_a_stream_never_share_a_number(spark) -> None:
    """A client name is used by one call at a time, each with a higher number; concurrent calls have two names."""
    with sender(spark, "orders", "way", None, None) as first:
        with sender(spark, "orders", "way", None, None) as beside:
            assert beside.client != first.client
        with sender(spark, "orders", "way", None, None) as after:
            assert after == beside._replace(batch_id=beside.batch_id + 1)
    with sender(spark, "orders", "way", "mine", 5) as given:
        assert given == Sender("mine/way", 5)
    assert first.client.startswith(f"{CLIENT}/")


def test_arguments_that_change_the_numbers_change_the_name() -> None:
    """Another key, order or number of writers gives another client name, so that rows are no duplicates."""
    ways = [recipe(["a"], [], 16), recipe(["b"], [], 16), recipe(["a"], ["b"], 16), recipe(["a"], [], 8)]
    assert len(set(ways)) == 4
    assert ways[0] == recipe(("a",), (), 16)


def test_calls_of_two_functions_are_no_repeats_of_each_other() -> None:
    """In a batch that the caller numbers, deltas, records and deletes of one client have three names."""
    functions = (None, "publish_records", "delete_records")
    calls = [Sending("orders", ["id"], {}, [], "mine", 7, 16, None, function)._way for function in functions]
    assert len(set(calls)) == 3
    counted = [Sending("orders", ["id"], {}, [], "mine", None, 16, None, function)._way for function in functions]
    assert set(counted) == {calls[0]}, "a query counts its calls"


def test_a_second_call_of_a_batch_is_reported(caplog) -> None:
    """A call with the client and number of one that has ended is a repeat for workers, and the log says so."""
    for batch_id, is_reported in ((7, False), (7, True), (8, False)):
        caplog.clear()
        with sender(None, "orders", "way", "twice", batch_id) as by:
            assert by == Sender("twice/way", batch_id)
        assert ("give the call a client of its own" in caplog.text) == is_reported
    with pytest.raises(RuntimeError), sender(None, "orders", "way", "failing", 7):
        raise RuntimeError
    with sender(None, "orders", "way", "failing", 7):
        assert "failing" not in caplog.text, "what has failed is to be repeated"


def test_highest_sequence_is_one() -> None:
    """Workers accept the sequence of the last row of the last possible batch."""
    assert (BATCH_MAX << 32) + 2**32 - 1 == SEQUENCE_MAX


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"kafka.acks": "1"}, "option 'kafka.acks' cannot be given"),
        ({"KAFKA.enable.idempotence": "false"}, "option 'KAFKA.enable.idempotence' cannot be given"),
        ({"kafka.delivery.timeout.ms": "1000"}, "nothing is given up that waits to be sent"),
        ({"kafka.retries": "3"}, "nothing is given up"),
        ({"kafka.max.request.size": str(2**25)}, "the topic takes records of 16777216 bytes"),
        ({"kafka.max.request.size": "much"}, "is much"),
    ],
)
def test_options_that_could_leave_a_gap_are_refused(option, said) -> None:
    """Options that let a producer drop a record and send the next are refused, as the first one would be lost."""
    with pytest.raises(ConfigurationError, match=said):
        publish_options("orders", NOWHERE | option)


def test_producer_gives_nothing_up() -> None:
    """The producer is idempotent and waits without a limit; options of the caller replace defaults, and are kept."""
    own = {"kafka.max.request.size": "2000000", "kafka.linger.ms": "7", "kafka.compression.type": "none"}
    assert publish_options("orders", NOWHERE | own) == NOWHERE | own | {
        "topic": "orders.publish",
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "kafka.delivery.timeout.ms": "2147483647",
        "kafka.batch.size": "262144",
    }
