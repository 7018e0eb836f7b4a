from __future__ import annotations

import json
import shutil

import pytest
import yaml

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import ConfigurationError, Stop
from spark_integration.pipeline.jobs.features import PublishedState

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]


def _sow(pipeline, *records):
    pipeline.world.publish([(b"%d" % record["id"], record, {"version": "1"}) for record in records], "sow")


@pytest.fixture
def depth(pipeline_of, unique):
    """A pipeline that sums quantities by item."""
    topic = f"{unique}_depth"
    pipeline = pipeline_of(others={topic: {"key": ["/item"], "partitions": 1}})
    pipeline.write(
        depth={
            "job": "features",
            "from": [unique],
            "sql": f"SELECT item, sum(qty) AS qty, max(note) AS note FROM {unique} GROUP BY item",
            "topic": topic,
            "key": ["item"],
            "writers": 1,
        }
    )
    pipeline.topic = topic
    return pipeline


def _published(pipeline):
    topic = pipeline.topic
    return [(record.key.decode(), record.headers["command"], json.loads(record.value or "null"),
             json.loads(record.headers.get("remove", "[]")))
            for record in pipeline.world.read("publish", topic)]  # fmt: skip


def test_only_rows_that_change_are_published(depth) -> None:
    """The first result is published whole, then only rows that differ: a null removes its field, a lost row its key."""
    _sow(depth, {"id": 1, "item": "a", "qty": 5, "note": "x"}, {"id": 2, "item": "b", "qty": 7})
    depth.run()
    assert sorted(_published(depth)) == [
        ("a", "delta_publish", {"item": "a", "qty": 5, "note": "x"}, []),
        ("b", "delta_publish", {"item": "b", "qty": 7}, ["/note"]),
    ]
    before = len(_published(depth))
    _sow(depth, {"id": 1, "item": "a", "qty": 5}, {"id": 2, "item": "c", "qty": 7})
    monitor = depth.run()
    assert sorted(_published(depth)[before:]) == [
        ("a", "delta_publish", {"item": "a", "qty": 5}, ["/note"]),
        ("b", "sow_delete", None, []),
        ("c", "delta_publish", {"item": "c", "qty": 7}, ["/note"]),
    ]
    assert monitor.views()["depth"].counts["published"] == 3
    _sow(depth, {"id": 1, "item": "a", "qty": 5})
    assert depth.run().views()["depth"].counts["published"] == 0


def _query(depth, sql, **more):
    """Give the job another query and other settings."""
    tree = yaml.safe_load(depth.file.read_text())
    tree["jobs"]["depth"] |= {"sql": sql, **more}
    depth.file.write_text(yaml.safe_dump(tree))


def test_a_field_of_a_struct_that_is_null_is_removed(depth, unique) -> None:
    """A null is removed at any depth of structs, and so are fields that the query has no more; never below a null."""
    struct = "named_struct('last', max(qty), 'a/b', named_struct('note', max(note)))"
    columns = {unique: "id LONG, item STRING, qty LONG, note STRING"}
    _query(depth, f"SELECT item, IF(max(qty) < 9, {struct}, NULL) AS s FROM {unique} GROUP BY item", schemas=columns)
    _sow(depth, {"id": 1, "item": "a", "qty": 5, "note": "x"}, {"id": 2, "item": "b", "qty": 7, "note": "x"})
    depth.run()
    _sow(depth, {"id": 1, "item": "a", "qty": 5}, {"id": 2, "item": "b", "qty": 9})
    depth.run()
    assert sorted(_published(depth)[2:]) == [
        ("a", "delta_publish", {"item": "a", "s": {"last": 5, "a/b": {}}}, ["/s/a~1b/note"]),
        ("b", "delta_publish", {"item": "b"}, ["/s"]),
    ]
    _query(depth, f"SELECT item, named_struct('last', max(qty)) AS s FROM {unique} GROUP BY item")
    _sow(depth, {"id": 1, "item": "a", "qty": 6})
    depth.run()
    assert sorted(_published(depth)[4:]) == [
        ("a", "delta_publish", {"item": "a", "s": {"last": 6}}, ["/s/a~1b"]),
        ("b", "delta_publish", {"item": "b", "s": {"last": 9}}, ["/s/a~1b"]),
    ]


def test_a_map_in_the_result_is_refused(depth, unique) -> None:
    """A column in which Spark can see no change is an error at the start, with the remedy, at any depth."""
    _sow(depth, {"id": 1, "item": "a", "qty": 5})
    for column in ("map(item, 1) AS m", "array(parse_json('[1]')) AS m"):
        _query(depth, f"SELECT item, {column} FROM {unique}")
        with pytest.raises(ConfigurationError, match=r"depth: column 'm' of the result is .*to_json\(m\) AS m"):
            depth.run()
    _query(depth, f"SELECT item, to_json(map(item, 1)) AS m FROM {unique}")
    depth.run()
    assert [body for _, _, body, _ in _published(depth)] == [{"item": "a", "m": '{"a":1}'}]


def test_an_empty_text_next_to_a_null_stops_nothing(depth, unique) -> None:
    """With `null_keys: group` the row with the empty text is published, and that of the NULL is in the quarantine."""
    _query(depth, f"SELECT item, sum(qty) AS qty FROM {unique} GROUP BY item", null_keys="group")
    _sow(depth, {"id": 1, "qty": 5}, {"id": 2, "item": "a", "qty": 6})
    depth.run()
    _sow(depth, {"id": 3, "item": "", "qty": 7})
    assert depth.run().views()["depth"].counts["quarantined.missing_key"] == 1
    assert [(key, body["qty"]) for key, _, body, _ in sorted(_published(depth)[:2])] == [("", 5), ("a", 6)]
    assert _published(depth)[2:] == [("", "delta_publish", {"item": "", "qty": 7}, [])]
    [row] = depth.set_aside("checkpoints/depth/quarantine")
    assert row["detail"] == "item is null, and part of the key; another row has the key with the empty text"
    assert json.loads(row["row"]) == {"item": None, "qty": 5}


def test_a_run_that_dies_after_publishing_repeats_its_identities(depth, monkeypatch) -> None:
    """Changes whose result was not yet recorded are sent again under the same numbers, though the input moved on."""
    _sow(depth, {"id": 1, "item": "a", "qty": 5, "note": "x"})
    with monkeypatch.context() as patch:
        patch.setattr(PublishedState, "switch", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="division"):
            depth.run()
    _sow(depth, {"id": 1, "item": "a", "qty": 6, "note": "x"})
    depth.run()
    records = depth.world.read("publish", depth.topic)
    identities = [(record.headers["client"], record.headers["sequence"], json.loads(record.value)["qty"])
                  for record in records]  # fmt: skip
    assert identities[0] == identities[1]
    _sow(depth, {"id": 1, "item": "a", "qty": 7, "note": "x"})
    depth.run()
    assert [json.loads(record.value)["qty"] for record in depth.world.read("publish", depth.topic)] == [5, 5, 6, 7]


def test_a_checkpoint_that_was_set_back_publishes_under_new_numbers(depth) -> None:
    """Results after a return to a copy of the checkpoint have higher numbers, so that workers drop none of them."""
    checkpoint, copy = depth.home / "checkpoints", depth.home / "copy"
    _sow(depth, {"id": 1, "item": "a", "qty": 5, "note": "x"})
    depth.run()
    shutil.copytree(checkpoint, copy)
    _sow(depth, {"id": 1, "item": "a", "qty": 6, "note": "x"})
    depth.run()
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    _sow(depth, {"id": 1, "item": "a", "qty": 7, "note": "x"})
    depth.run()
    records = depth.world.read("publish", depth.topic)
    assert [json.loads(record.value)["qty"] for record in records] == [5, 6, 7]
    assert len({record.headers["client"] for record in records}) == 1
    sequences = [int(record.headers["sequence"]) for record in records]
    assert sequences == sorted(set(sequences))


def test_a_row_without_a_key_stops_nothing_and_mended_sql_is_computed_again(depth, unique) -> None:
    """A NULL group goes to the quarantine once, and the others are published; with `null_keys: group` its key is "".

    Changes that other settings have prepared, of which some were sent perhaps, are never sent again: all rows are
    published again, and those that only they had are deleted.
    """
    _sow(depth, {"id": 1, "item": "a", "qty": 5, "note": "x"}, {"id": 2, "qty": 7})
    assert depth.run().views()["depth"].counts["quarantined.missing_key"] == 1
    assert [(key, command) for key, command, *_ in _published(depth)] == [("a", "delta_publish")]
    _sow(depth, {"id": 3, "item": "b", "qty": 1})
    assert depth.run().views()["depth"].quarantined == 0, "the same row is not set aside again"
    [row] = depth.set_aside("checkpoints/depth/quarantine")
    assert (row["reason"], row["detail"]) == ("missing_key", "item is null, and part of the key")
    assert json.loads(row["row"]) == {"item": None, "qty": 7, "note": None}
    # A result that an earlier version prepared, and could never publish.
    state = depth.home / "checkpoints/depth/published"
    prepared = json.loads((state / "_sowstream/prepared.json").read_text())
    snapshot = json.loads((state / f"_snapshots/{prepared['number']}.json").read_text())
    shutil.copytree(state / "data" / snapshot["directory"], state / "data/poisoned")
    content = {"number": prepared["number"] + 1, "directory": "poisoned", "time_ms": prepared["time_ms"]}
    (state / "_sowstream/prepared.json").write_text(json.dumps(content))
    tree = yaml.safe_load(depth.file.read_text())
    tree["jobs"]["depth"]["null_keys"] = "group"
    tree["jobs"]["depth"]["sql"] = f"SELECT item, sum(qty) AS qty FROM {unique} WHERE id < 3 GROUP BY item"
    depth.file.write_text(yaml.safe_dump(tree))
    before = len(_published(depth))
    _sow(depth, {"id": 1, "item": "a", "qty": 6})
    depth.run()
    assert sorted(_published(depth)[before:]) == [
        ("", "delta_publish", {"item": "", "qty": 7}, ["/note"]),
        ("a", "delta_publish", {"item": "a", "qty": 6}, ["/note"]),
        ("b", "sow_delete", None, []),
    ]


def test_a_record_that_does_not_fit_a_key_or_column_is_left_out_once(depth, unique) -> None:
    """It is in the quarantine once, and the result is that of the other records, until a better one is published.

    With `on_misfit: fail` the job stops, and the error names the settings that help.
    """
    tree = yaml.safe_load(depth.file.read_text())
    tree["jobs"]["depth"]["schemas"] = {unique: "id LONG, item STRING, qty LONG, note STRING"}
    depth.file.write_text(yaml.safe_dump(tree))
    _sow(depth, {"id": 1, "item": "a", "qty": "many"}, {"id": 2, "item": "b", "qty": 2})
    assert depth.run().views()["depth"].counts["quarantined.misfit"] == 1
    _sow(depth, {"id": 3, "item": "b", "qty": 3})
    assert depth.run().views()["depth"].quarantined == 0
    [row] = depth.set_aside("checkpoints/depth/quarantine")
    assert (row["reason"], row["field"], row["topic"], row["key"]) == ("misfit", "/qty", f"{unique}.sow", "1")
    _sow(depth, {"id": 1, "item": "a", "qty": 1})
    depth.run()
    assert [(key, body) for key, _, body, _ in _published(depth)] == [
        ("b", {"item": "b", "qty": 2}),
        ("b", {"item": "b", "qty": 5}),
        ("a", {"item": "a", "qty": 1}),
    ]
    tree["jobs"]["depth"]["on_misfit"] = "fail"
    depth.file.write_text(yaml.safe_dump(tree))
    _sow(depth, {"id": 1, "item": "a", "qty": "many"})
    with pytest.raises(Stop, match=rf"depth: {unique}.sow, partition \d.*or set `on_misfit: quarantine`$"):
        depth.run()


def test_a_misfit_and_a_row_without_a_key_of_one_result_are_both_set_aside(depth, unique) -> None:
    """The quarantine has the record that does not fit and the row without a key, also if one result has both."""
    tree = yaml.safe_load(depth.file.read_text())
    tree["jobs"]["depth"]["schemas"] = {unique: "id LONG, item STRING, qty LONG, note STRING"}
    depth.file.write_text(yaml.safe_dump(tree))
    _sow(depth, {"id": 1, "item": "a", "qty": "many"}, {"id": 2, "qty": 7}, {"id": 3, "item": "b", "qty": 2})
    assert depth.run().views()["depth"].quarantined == 2
    assert sorted(row["reason"] for row in depth.set_aside("checkpoints/depth/quarantine")) == ["misfit", "missing_key"]


def test_a_source_may_have_any_name_of_a_topic(pipeline_of, unique) -> None:
    """A topic whose name is no name in SQL, as with a hyphen, is a view in backticks."""
    source, topic = f"{unique}-orders", f"{unique}_depth"
    pipeline = pipeline_of(others={topic: {"key": ["/item"]}, source: {"key": ["/id"]}})
    query = f"SELECT item, sum(qty) AS qty FROM `{source}` GROUP BY item"
    pipeline.write(depth={"job": "features", "from": [source], "sql": query, "topic": topic, "key": ["item"]})
    pipeline.world.publish([(b"1", {"id": 1, "item": "a", "qty": 5}, {"version": "1"})], "sow", name=source)
    pipeline.topic = topic
    pipeline.run()
    assert [body for _, _, body, _ in _published(pipeline)] == [{"item": "a", "qty": 5}]
