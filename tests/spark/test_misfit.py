"""A record that does not fit its columns is a row with the reason and its place, where the caller wants to go on."""

from __future__ import annotations

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration import read_sow, stream_deltas
from tests.codec.avro_world import file_codec, record
from tests.spark.history import History

pytestmark = [pytest.mark.spark, pytest.mark.broker]

SCHEMA = "id LONG, qty LONG, at DATE, to STRUCT<zip: STRING>"
FITS = '{"id":1,"qty":null,"more":[1]}'
MISFITS = {
    '{"id":2,"qty":"plenty"}': "does not fit the schema: /qty is not bigint",
    '{"id":"x","qty":1.5,"to":{"zip":"8"}}': "does not fit the schema: /id is not bigint, /qty is not bigint",
    '{"id":3,"to":[1]}': "does not fit the schema: /to is not struct<zip:string>",
    '{"id":4': "not JSON",
    "[1]": "not a JSON object",
    "7": "not a JSON object",
    "null": "not a JSON object",
    '{"id":5}{"id":6}': "not one JSON object",
    "": "not JSON",
    " ": "not JSON",
}


@pytest.fixture
def history(bootstrap: str, unique: str) -> History:
    """A family of topics for one test, not yet created."""
    return History(unique, bootstrap)


def test_a_misfit_is_a_row_with_its_reason(spark, history) -> None:
    """Each record that does not fit is a row: fields null, `misfit` with reason, topic and bytes, and its place."""
    history.create("sow", 2)
    history.write("sow", ("fits", FITS), partition=1)
    for number, text in enumerate(MISFITS):
        history.write("sow", (str(number), text), headers={"version": "7"})
    table = read_sow(spark, history.name, SCHEMA, options=history.options, on_misfit="column")
    assert table.columns == ["id", "qty", "at", "to", "_sow"]
    rows = {row["_sow"]["sow_key"]: row for row in table.collect()}
    good = rows.pop("fits")
    assert (good["id"], good["qty"], good["_sow"]["misfit"]) == (1, None, None)
    misfits = [row["_sow"]["misfit"] for row in rows.values()]
    assert {bytes(misfit["value"]).decode(): misfit["reason"] for misfit in misfits} == MISFITS
    for row in rows.values():
        assert [row[name] for name in ("id", "qty", "at", "to")] == [None] * 4
        place = row["_sow"]
        assert (place["misfit"]["topic"], place["partition"], place["version"]) == (f"{history.name}.sow", 0, 7)
        assert place["sow_key"] == str(place["offset"])
    # What cannot be judged passes the filter, and nothing is judged by nulls.
    kept = read_sow(
        spark, history.name, SCHEMA, options=history.options, on_misfit="column", filter="/qty IS NULL AND /id = 1"
    )
    assert kept.count() == len(MISFITS) + 1


def test_the_default_fails_and_other_words_are_refused(spark, history) -> None:
    """Without `column` there is no column for misfits; another word is an error."""
    history.create("sow")
    table = read_sow(spark, history.name, SCHEMA, options=history.options)
    assert "misfit" not in table.schema["_sow"].dataType.names
    with pytest.raises(ConfigurationError, match=r"on_misfit='skip': say 'fail' .* or 'column'"):
        read_sow(spark, history.name, SCHEMA, options=history.options, on_misfit="skip")
    with pytest.raises(ConfigurationError, match=r"metadata='none' and on_misfit='column': .*; leave one out"):
        read_sow(spark, history.name, SCHEMA, options=history.options, metadata="none", on_misfit="column")


def test_a_failing_query_names_the_place_of_the_record(spark, history) -> None:
    """By default a record of JSON that does not fit fails the query, which names topic, partition, offset and key."""
    history.create("sow", 2)
    history.write("sow", ("1", FITS), ("x", '{"id":"x","qty":1}'), partition=1)
    table = read_sow(spark, history.name, SCHEMA, options=history.options)
    place = f"{history.name}.sow, partition 1, offset 1, sow_key x: does not fit the schema: /id is not bigint; "
    with pytest.raises(Exception, match=place):
        table.select("qty").collect()
    matching = read_sow(spark, history.name, SCHEMA, options=history.options, filter="/qty = 1")
    with pytest.raises(Exception, match=place):
        matching.collect()


@pytest.mark.long
def test_a_stream_goes_on_over_misfits(spark, history, tmp_path) -> None:
    """Streams of JSON and of Avro show a bad record as a row and go on; its list of changes is empty."""
    history.create("delta")
    history.write("delta", ("1", FITS), ("2", '{"id":"x"}'), ("3", "{"), ("4", '{"id":4}'))
    options = history.options | {"startingOffsets": "earliest"}
    rows = drain(stream_deltas(spark, history.name, SCHEMA, options=options, on_misfit="column"), tmp_path / "json")
    assert [(row["id"], row["changed"], row["misfit"] and row["misfit"]["reason"]) for row in rows] == [
        (1, ["/id", "/qty", "/more"], None),
        (None, [], "does not fit the schema: /id is not bigint"),
        (None, [], "not JSON"),
        (4, ["/id"], None),
    ]


@pytest.mark.long
def test_records_of_avro_that_do_not_fit(spark, history, tmp_path) -> None:
    """Bytes that are no Avro, a value of another type and one without room are rows with their reason."""
    history.create("sow")
    codec = file_codec(record(("id", "long"), ("n", "long", 0)), tmp_path)
    config = {"message_type": "avro", "schema": str(tmp_path / "schema.avsc")}
    good, large = (codec.encode({"id": number, "n": n}) for number, n in ((1, 5), (3, 999)))
    history.write("sow", ("1", good), ("2", b"\xff"), ("3", large))
    arguments = {"options": history.options, "config": config, "on_misfit": "column"}
    table = read_sow(spark, history.name, "id LONG, n TINYINT", **arguments).select("id", "n", "_sow.*")
    rows = {row["sow_key"]: row for row in table.collect()}
    assert (rows["1"]["n"], rows["1"]["misfit"]) == (5, None)
    assert rows["2"]["misfit"]["reason"].startswith("undecodable: ")
    assert rows["3"]["misfit"]["reason"] == "/n is 999, which has no room in 8 bits"
    assert (rows["3"]["id"], rows["3"]["offset"], rows["3"]["misfit"]["topic"]) == (None, 2, f"{history.name}.sow")
    assert bytes(rows["2"]["misfit"]["value"]) == b"\xff"
    table = read_sow(spark, history.name, "id STRING", **arguments).select("_sow.misfit.reason")
    assert "/id is int where the schema means text" in [row["reason"] for row in table.collect()]


def drain(stream, path):
    """All records of a stream's topic now, by offset."""
    writer = stream.select("id", "_sow.*").writeStream.format("parquet").option("path", str(path))
    writer = writer.option("checkpointLocation", f"{path}.state").trigger(availableNow=True)
    writer.start().awaitTermination()
    return stream.sparkSession.read.parquet(str(path)).orderBy("offset").collect()
