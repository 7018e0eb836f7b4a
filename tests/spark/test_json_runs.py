from __future__ import annotations

import json
import random
from collections import Counter, defaultdict

import orjson
import pytest

from processor.record import Record
from tests.spark.merge_histories import NAME, NOW_MS, task_input

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sowstream[spark]'")

import pyarrow as pa

from spark_integration.foundation.arrow_records import headers_of
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.fold import Fold
from spark_integration.merge.batch.runs import compiled_runs
from spark_integration.merge.batch.runs.sequence_log import SEQUENCE, Block

pytestmark = pytest.mark.skipif(not compiled_runs.has_compiled, reason="json_runs was not compiled: no C compiler")

TOPICS = {
    "default": {},
    "nulls set": {"null_policy": "set"},
    "nulls remove": {"null_policy": "remove"},
    "publish": {"default_command": "publish"},
    "small": {"max_record_bytes": 90},
    "two key fields": {"key": ["/k", "/id"]},
}
NUMBERS = ["0", "-1", "7", "-0", "01", "123456789012345678", "1234567890123456789", "1.5", "-2.25", "1.50", "0.1",
           "0.0", "-0.0", "0.0001", "0.00001", "1e5", "1E-7", "123456789.123456", "1234567890.1234567", "100.0", "1.",
           ".5", "18446744073709551616", "0.1234567890123456789", "1.5e1"]  # fmt: skip
STRINGS = ['""', '"a"', '"a b"', '"é"', '"\\n"', '"\\u0041"', '"\x7f"', '"\t"', '"' + "x" * 40 + '"', '"\\"']
WORDS = ["true", "false", "null", "tru", "nul", "True"]


def _value(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth < 3 and kind < 0.12:
        return "[" + ",".join(_value(rng, depth + 1) for _ in range(rng.randrange(3))) + "]"
    if depth < 3 and kind < 0.3:
        return _object(rng, depth + 1)
    return rng.choice(rng.choice([NUMBERS, STRINGS, WORDS]))


def _object(rng: random.Random, depth: int = 0) -> str:
    separators = rng.choice([(",", ":"), (",", ":"), (", ", ": ")])
    members = [f'"{rng.choice("abcd")}"{separators[1]}{_value(rng, depth)}' for _ in range(rng.randrange(4))]
    return "{" + separators[0].join(members) + rng.choice(["}", "}", "}", " }", "]"])


@pytest.mark.random
def test_a_message_that_is_not_parsed_is_one_that_orjson_would_write(random_seed: int) -> None:
    """A message that `is_written` accepts is the text that orjson writes; compact messages of usual values are such."""
    from spark_integration.merge.batch.runs.json_runs import is_written

    rng = random.Random(random_seed)
    texts = [_object(rng) for _ in range(30_000)]
    # Texts that are cut, or have a byte too many.
    texts += [text[: rng.randrange(len(text))] + rng.choice(["", "}", ",", '"', " "]) for text in texts[:10_000]]
    written = 0
    for text in texts:
        message = text.encode()
        if is_written(message):
            written += 1
            assert orjson.dumps(orjson.loads(message)) == message, text
    assert written > 2_000
    for value in ({"id": 7, "price": 12.25, "state": "open", "tags": [1, {"a": None}], "is": True}, {}, {"a": {}}):
        assert is_written(json.dumps(value, separators=(",", ":")).encode())


def _body(rng: random.Random, key: int, *, is_plain: bool) -> bytes:
    values = ["1", "2", "1.5", "100.0", '"s"', '"é"', "true", '{"x":1}', '{"x":2,"y":{"z":3}}', "{}", "[1]", "[]"]
    own = f'"id":{key}'
    if not is_plain:
        values += [*NUMBERS, '{"x":null}', "null"]
        own = rng.choice([own, own, f'"id":"{key}"', f'"id":{key + rng.choice([0, 0, 0, 1])}', ""])
    members = [f'"{name}":{rng.choice(values)}' for name in rng.sample("abcdef", rng.randrange(4))]
    members.insert(rng.randrange(len(members) + 1), own)
    return ("{" + rng.choice([",", ",", ",", ", "]).join(filter(None, members)) + "}").encode()


def _history(rng: random.Random, count: int, *, has_two: bool) -> list[Record]:
    sequences: Counter[bytes] = Counter()
    history = []
    for offset in range(count):
        key = rng.randrange(40)
        headers: list[tuple[str, bytes | None]] = []
        if key % 3:
            client = rng.choice([b"ann", b"ben", b"cy"])
            sequences[client] = max(0, sequences[client] + rng.choice([1, 1, 1, 1, 1, 1, 0]))
            headers = [("client", client), ("sequence", b"%d" % sequences[client])]
            if rng.random() < 0.3:
                headers.insert(
                    0, ("command", rng.choice([b"publish" if key % 5 == 0 else b"delta_publish", b"delta_publish"]))
                )
            if rng.random() < 0.1:
                headers += [("ack_type", b"processed,stats"), ("command_id", b"%d" % offset)]
            if rng.random() < 0.1 and key % 4 == 0:
                headers.append(
                    rng.choice([("trace", b"t"), ("replay_of", b"x"), ("client", b"dan"), ("sequence", None)])
                )
            rng.shuffle(headers)
        is_plain = key % 4 != 0
        may_end = not is_plain or key % 7 == 0
        if may_end and key % 3 and headers[0][0] != "command" and rng.random() < 0.05:
            headers.insert(0, ("command", b"sow_delete"))
        value = None if may_end and rng.random() < 0.1 else _body(rng, key, is_plain=is_plain)
        if has_two and value is not None:
            other = rng.choice(['"k":"x"', '"k":"x"', '"k":"x"', '"k":"y"', ""]) if not is_plain else '"k":"x"'
            members = [value[1:-1].decode(), other]
            rng.shuffle(members)
            value = ("{" + ",".join(filter(None, members)) + "}").encode()
        text = b'["x","%d"]' % key if has_two else b"%d" % key
        history.append(Record(text, value, headers or None, offset, NOW_MS))
    return history


def _batch(history: list[Record], repeats: frozenset[int] | None = None) -> pa.RecordBatch:
    """The input of a Spark task."""
    records, columns = task_input(history)
    if repeats is not None:
        columns["is_repeat"] = pa.array([True if record.offset in repeats else None for record in records], pa.bool_())
    return pa.RecordBatch.from_pydict(columns)


def _fold(history: list[Record], topic, *, deltas: bool, size: int, repeats: frozenset[int] | None):
    whole = _batch(history, repeats)
    batches = [whole.slice(begin, size) for begin in range(0, whole.num_rows, size)]
    out = defaultdict(list)
    entries = {}
    for batch in Fold(topic_settings(NAME, topic), NOW_MS, deltas)(iter(batches)):
        rows = zip(*(batch.column(name).to_pylist() for name in ("topic", "key", "value")), strict=True)
        for (role, key, value), headers in zip(rows, headers_of(batch.column("headers")), strict=True):
            if role == SEQUENCE:
                block = Block.of(key, value)
                named = zip(block.offsets.tolist(), block.numbers.tolist(), block.kinds.tolist(), strict=True)
                entries.update({(block.name, offset): (number, kind) for offset, number, kind in named})
            else:
                out[role].append((key, value, headers))
    deltas_by_key = defaultdict(list)
    for key, *row in out.pop("delta", []):
        deltas_by_key[key].append(row)
    return {role: sorted(rows, key=repr) for role, rows in out.items()}, deltas_by_key, entries


@pytest.mark.random
@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("is_marked", [False, True])
def test_the_compiled_merge_is_the_one_in_python(monkeypatch, random_seed, topic, deltas, is_marked) -> None:
    """Both merges have the same output, counters and sequences; the compiled one merges most of the runs."""
    rng = random.Random(random_seed)
    left = Counter()
    came = compiled_runs.CompiledRuns.merge

    def merge(self, *given, **named):
        part = came(self, *given, **named)
        left["left"] += sum(end - begin for begin, end in part.left)
        left["merged"] += part.merged
        return part

    monkeypatch.setattr(compiled_runs.CompiledRuns, "merge", merge)
    for _ in range(3):
        history = _history(rng, 400, has_two="key" in topic)
        repeats = frozenset(rng.sample(range(400), 40)) if is_marked else None
        outcomes = []
        # Unmarked duplicates are guesses from the records of one chunk.
        sizes = [1, 7, 100, 1000] if is_marked else [1000]
        for has_compiled, size in ((True, rng.choice(sizes)), (False, rng.choice(sizes))):
            monkeypatch.setattr(compiled_runs, "has_compiled", has_compiled)
            outcomes.append(_fold(history, topic, deltas=deltas, size=size, repeats=repeats))
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][2]
    if not (deltas and "default_command" in topic):  # Records that replace are left where deltas are wanted.
        assert left["merged"] > (0.01 if "max_record_bytes" in topic else 0.5) * left["left"], left


def test_a_large_output_is_cut() -> None:
    """The output of a chunk goes to Spark in parts of some 32 MiB, so that a task's memory and Arrow's offsets last."""
    values = [b'{"id":%d,"s":"%s"}' % (key, b"x" * 20_000) for key in range(2_000)]
    history = [Record(b"%d" % key, value, None, key, NOW_MS) for key, value in enumerate(values)]
    batches = list(Fold(topic_settings(NAME, None), NOW_MS, deltas=True)(iter([_batch(history)])))
    for role in ("sow", "delta"):
        parts = [batch for batch in batches if batch.column("topic")[0].as_py() == role]
        assert sorted(value for part in parts for value in part.column("value").to_pylist()) == sorted(values)
        assert max(part.nbytes for part in parts) < 20 << 20
