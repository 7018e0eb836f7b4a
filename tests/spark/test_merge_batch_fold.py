from __future__ import annotations

import gc
import json
import random
import tracemalloc
from collections import Counter, defaultdict

import pytest

from processor.errors import Stop
from processor.record import Record
from processor.wire.partition_marks import first_version
from tests.spark.merge_histories import NAME, NOW_MS, random_history, worker

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.foundation.arrow_records import headers_column, headers_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.fold import BASE_OFFSET, Fold
from spark_integration.merge.batch.runs import compiled_runs
from spark_integration.merge.key_lives import MADE_OFFSETS

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(params=["compiled", "pure"])
def way(request, monkeypatch) -> str:
    """Each test runs with the compiled merge of runs and with the one in Python."""
    if request.param == "compiled" and not compiled_runs.has_compiled:
        pytest.skip("json_runs was not compiled: no C compiler")
    monkeypatch.setattr(compiled_runs, "has_compiled", request.param == "compiled")
    return request.param


RULES = {
    "merge_rules": {"/qty": "sum", "/tags": "append"},
    "sequence_groups": [{"by": "/ts", "fields": ["/price"]}],
}
TOPICS = {
    "plain": {},
    "nulls set": {"null_policy": "set"},
    "nulls remove, source": {"null_policy": "remove", "source_header": True},
    "um": {"preset": "um"},
    "expiring": {"expiration": "2s"},
    "small": {"max_record_bytes": 120},
    "rules": RULES,
}


def _batches(history: list[tuple[int, Record]], rng: random.Random):
    """The input of a Spark task: sorted by partition, key and offset, in batches of any size."""
    rows = sorted(history, key=lambda row: (row[0], row[1].key or b"", row[1].offset))
    records = [record for _, record in rows]
    whole = pa.RecordBatch.from_arrays(
        [
            pa.array([r.key for r in records], pa.binary()),
            pa.array([r.value for r in records], pa.binary()),
            headers_column([r.headers or [] for r in records]),
            pa.array([partition for partition, _ in rows], pa.int32()),
            pa.array([r.offset for r in records], pa.int64()),
            pa.array([r.timestamp_ms for r in records], pa.int64()),
        ],
        names=["key", "value", "headers", "partition", "offset", "timestamp_ms"],
    )
    begin, sizes = 0, rng.choice([[1, 2, 7], [3, 20, 50], [1000]])
    while begin < len(rows):
        size = rng.choice(sizes)
        yield whole.slice(begin, size)
        begin += size


def _fold(history, rng, topic, *, deltas, as_of_ms):
    """The output by role: partition, key, value and headers of each record."""
    out = defaultdict(list)
    for batch in Fold(topic_settings(NAME, topic), as_of_ms, deltas)(_batches(history, rng)):
        columns = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
        columns += batch.column("key").to_pylist(), batch.column("value").to_pylist()
        for role, *row, headers in zip(*columns, headers_of(batch.column("headers")), strict=True):
            out[role].append((*row, headers or []))
    return out


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
@pytest.mark.parametrize("deltas", [False, True])
def test_fold_is_a_worker_per_key(topic, seed, deltas) -> None:
    """The output for each key is a worker's last SOW record, all its deltas in order, and its dead letters."""
    print("seed", seed)
    rng = random.Random(seed)
    histories = {partition: random_history(rng, 150, conditional=0.15) for partition in range(3)}
    as_of_ms = max(history[-1].timestamp_ms for history in histories.values()) + rng.choice([0, 1500])
    given = [(partition, record) for partition, history in histories.items() for record in history]
    out = _fold(given, rng, topic, deltas=deltas, as_of_ms=as_of_ms)
    counts = {key.decode(): int(value) for _, key, value, _ in out["count"]}
    events: Counter[str] = Counter()
    for partition, history in histories.items():
        expected = worker(topic_settings(NAME, topic), partition, history, as_of_ms)
        assert {key: row for p, key, *row in out["sow"] if p == partition} == {
            key: list(row) for key, row in expected.sow.items()
        }
        assert sorted((row for p, *row in out["dlq"] if p == partition), key=repr) == [
            list(row) for row in expected.dlq
        ]
        found = defaultdict(list)
        for p, key, *row in out["delta"]:
            if p == partition:
                found[key].append(tuple(row))
        assert found == (expected.deltas if deltas else {})
        for event, count in expected.events.items():
            events[event] += count
    told = {name: count for name, count in counts.items() if "/" not in name and name not in ("records", "sequenced")}
    assert told == {name: count for name, count in events.items() if count}
    assert events["conflict"], "no command was refused for its version"
    assert counts["records"] == len(given)
    assert len(out["sow"]) == len({(p, key) for p, key, *_ in out["sow"]})


@pytest.mark.parametrize("deltas", [False, True])
def test_fold_of_avro(tmp_path, deltas) -> None:
    """Records of Avro merge as in a worker: deltas name their fields, and a null differs from a missing field."""
    fields = [{"name": "id", "type": "long"}]
    fields += [{"name": name, "type": ["null", "long"], "default": None} for name in ("n", "m")]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    topic = {"message_type": "avro", "schema": str(tmp_path / "order.avsc"), "null_policy": "set"}
    codec, rng = topic_settings(NAME, topic).codec(), random.Random(3)
    history = []
    for offset in range(200):
        key = rng.randrange(8)
        body = {"id": key} | {name: rng.choice([None, offset]) for name in rng.sample("nm", rng.randrange(3))}
        value, headers = codec.encode_delta(body)
        if rng.random() < 0.2:
            value, headers = rng.choice([codec.encode(body), b"no"]), [("command", b"publish")]
        history.append(Record(b"%d" % key, value, headers, offset, NOW_MS))
    expected = worker(topic_settings(NAME, topic), 0, history, NOW_MS)
    out = _fold([(0, record) for record in history], rng, topic, deltas=deltas, as_of_ms=NOW_MS)
    assert {key: tuple(row) for _, key, *row in out["sow"]} == expected.sow
    assert len(out["dlq"]) == len(expected.dlq) > 0
    assert sum(map(len, expected.deltas.values())) == (len(out["delta"]) if deltas else 200 - len(out["dlq"]))


def test_key_of_many_chunks_is_one_record() -> None:
    """A key with deltas in many chunks has one output record, with all deltas and the last version."""
    history = [(0, Record(b"1", b'{"id":1,"f%d":%d}' % (n % 100, n), None, n, NOW_MS)) for n in range(9_000)]
    history += [(0, Record(b"2", b'{"id":2}', None, 9_000, NOW_MS))]
    out = _fold(history, random.Random(1), None, deltas=False, as_of_ms=NOW_MS)
    (one, two) = out["sow"]
    assert one[3] == [("version", b"9000")]
    assert one[2].count(b'"f') == 100
    assert two[1:3] == (b"2", b'{"id":2}')


def test_deltas_are_merged_into_the_base() -> None:
    """Deltas are merged into the record of the base, at its version; a record without commands stays unchanged."""
    base = [
        (0, Record(b"1", b'{"id":1,"a":1}', [("version", b"7"), ("trace", b"t")], BASE_OFFSET, 0)),
        (0, Record(b"2", b'{"id":2,"a":2}', [("version", b"3"), ("trace", b"t")], BASE_OFFSET, 0)),
    ]
    deltas = [
        (0, Record(b"2", b'{"id":2,"b":1}', None, 50, NOW_MS)),
        (0, Record(b"3", b'{"id":3}', None, 51, NOW_MS)),
    ]
    out = _fold(base + deltas, random.Random(1), None, deltas=True, as_of_ms=NOW_MS)
    assert sorted(out["sow"]) == [
        (0, b"1", b'{"id":1,"a":1}', [("version", b"7"), ("trace", b"t")]),
        (0, b"2", b'{"id":2,"a":2,"b":1}', [("version", b"4")]),
        (0, b"3", b'{"id":3}', [("version", b"103"), ("kind", b"insert")]),
    ]
    deltas = {key: value for _, key, value, _ in out["delta"]}
    assert deltas == {b"2": b'{"id":2,"b":1}', b"3": b'{"id":3}'}
    assert (0, b"records", b"2", []) in out["count"]


def test_records_in_one_place_are_refused() -> None:
    """Two records of a key with the same offset have no order and are an error with the key and the offset."""
    history = [(2, Record(b"1", b'{"id":1}', None, 5, NOW_MS))] * 2
    with pytest.raises(Stop, match=r"two records of the key b'1' are both at offset 5 of partition 2"):
        _fold(history, random.Random(1), None, deltas=False, as_of_ms=NOW_MS)


def test_record_that_grows_too_large_on_the_way_is_rejected() -> None:
    """A delta that makes the record too large is rejected, even if the last state would be small enough."""
    topic = {"max_record_bytes": 100, "default_command": "publish"}
    steps = [b'{"id":1,"s":"%s"}' % (b"x" * 60), b'{"id":1,"t":"%s"}' % (b"y" * 60), b'{"id":1,"s":""}']
    history = [Record(b"1", step, [("command", b"delta_publish")], n, NOW_MS) for n, step in enumerate(steps)]
    out = _fold([(0, r) for r in history], random.Random(1), topic, deltas=False, as_of_ms=NOW_MS)
    assert [(value, headers) for _, _, value, headers in out["sow"]] == [(b'{"id":1,"s":""}', [("version", b"2")])]
    assert [dict(headers)["dlq_reason"] for *_, headers in out["dlq"]] == [b"too_large"]


@pytest.mark.parametrize("is_frozen", [False, True])
def test_collector_is_as_it_was(is_frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task restores the state of the garbage collector, also after a failure: its process is reused, or was forked.

    Objects that Spark's Python daemon has frozen stay so: the memory of its workers is shared.
    """
    (gc.freeze if is_frozen else gc.unfreeze)()
    monkeypatch.setattr("spark_integration.merge.batch.fold.gc", gc)  # Other tests merge without it.
    history = [(2, Record(b"1", b'{"id":1}', None, 5, NOW_MS))] * 2
    with pytest.raises(Stop):
        _fold(history, random.Random(1), None, deltas=False, as_of_ms=NOW_MS)
    assert gc.isenabled()
    assert (gc.get_freeze_count() > 0) == is_frozen


@pytest.mark.parametrize("keys", [1, 1_000_000])
@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.long
def test_memory_is_a_chunk(keys, deltas) -> None:
    """The memory of a task does not grow with the number of records, of many keys or of one key."""

    def peak(count: int) -> int:
        """The peak memory, in bytes, while a number of generated records is merged."""
        template = next(_batches([(0, Record(b"1", b"{}", None, 0, NOW_MS))], random.Random(0))).schema

        def batches():
            for begin in range(0, count, 1_000):
                numbers = range(begin, begin + 1_000)
                names = [b"%09d" % (number % keys) for number in numbers]
                values = [b'{"id":"%b","n":%d}' % row for row in zip(names, numbers, strict=True)]
                columns = [names, values, [None] * 1_000, [0] * 1_000, list(numbers), [NOW_MS] * 1_000]
                arrays = [pa.array(column, field.type) for column, field in zip(columns, template, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=template)

        tracemalloc.start()
        try:
            for _ in Fold(topic_settings(NAME, None), NOW_MS, deltas)(batches()):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2_000)
    assert peak(20_000) < 1.3 * peak(5_000)


@pytest.mark.parametrize("partition", range(3))
def test_reserved_keys_are_rejected_as_by_a_worker(partition) -> None:
    """A key that only Sowstream writes is a dead letter in every partition, and no foreign record."""
    keys = [b"\0sowstream/moved/x", b"\0sowstream/"]
    bodies = [json.dumps({"id": key.decode(), "n": 1}).encode() for key in keys]
    commands = [(None, []), *((body, headers) for body in bodies for headers in ([], [("command", b"publish")]))]
    history = [
        Record(key, value, headers, 10 * place + number, NOW_MS)
        for place, key in enumerate(keys)
        for number, (value, headers) in enumerate(commands)
    ]
    expected = worker(topic_settings(NAME, None), partition, history, NOW_MS)
    out = _fold([(partition, record) for record in history], random.Random(1), None, deltas=True, as_of_ms=NOW_MS)
    assert not out["sow"]
    assert not expected.sow
    assert sorted(((*row,) for _, *row in out["dlq"]), key=repr) == sorted(map(tuple, expected.dlq), key=repr)
    assert len(expected.dlq) == len(history)


def test_a_moved_record_begins_a_life_above_all_before_the_history() -> None:
    """A life that a moved record begins has a version that no key had before the history, or before it in the history.

    A worker up to offset 500 has used versions up to `base + 1000`.
    """
    moved = [Record(key, b'{"id":1}', None, MADE_OFFSETS + n, NOW_MS) for n, key in enumerate((b"1", b"2"))]
    ended = [Record(b"2", b'{"id":1}', None, 510, NOW_MS), Record(b"2", None, None, 511, NOW_MS)]
    history = [(1, record) for record in (moved[0], *ended, moved[1])]
    fold = Fold(topic_settings(NAME, {"key": "explicit"}), NOW_MS, False, bases={1: 70}, begins={1: 500})
    versions = {}
    for batch in fold(_batches(history, random.Random(0))):
        if batch.column("topic")[0].as_py() == "sow":
            headers = map(dict, headers_of(batch.column("headers")))
            versions |= dict(zip(batch.column("key").to_pylist(), [each["version"] for each in headers], strict=True))
    end = first_version(70, 510) + 1
    assert versions == {b"1": b"%d" % first_version(70, 500), b"2": b"%d" % (end + 1)}
