from __future__ import annotations

import gzip
import json

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.merge.batch.files import history_of
from spark_integration.merge.batch.merge_batch import merge_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _merged(spark, history, **given) -> dict[str, dict]:
    with merge_batch(spark, "orders", history=history, **given) as merged:
        return {row.key.decode(): json.loads(row.value) for row in merged.records.collect()}


@pytest.mark.long
def test_lines_are_merged_in_the_order_of_their_files(spark, tmp_path) -> None:
    """Lines are merged by file name and place, from packed files too; a line without a key can be rejected."""
    lines = [{"id": n % 50, "last": n, f"f{n % 3}": n} for n in range(3_000)]
    for number, begin in enumerate(range(0, 3_000, 1_000)):
        text = "".join(json.dumps(line) + "\n" for line in lines[begin : begin + 1_000]).encode()
        (tmp_path / f"part ä{number}.json").write_bytes(text)
    with gzip.open(tmp_path / "part ä3.json.gz", "wb") as packed:
        packed.write(b'{"id":7,"last":"packed"}\nrubbish\n{"last":1}\n')
    history = history_of(spark, str(tmp_path), "orders")
    expected: dict[str, dict] = {}
    for line in [*lines, {"id": 7, "last": "packed"}]:
        expected.setdefault(str(line["id"]), {}).update(line)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "20000")  # Parts of a file.
    try:
        assert _merged(spark, history, keyless="merge") == expected
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


@pytest.mark.long
def test_a_field_orders_rows(spark, tmp_path) -> None:
    """Rows of Parquet become messages of their columns, in the order of a field, and argument `nulls` is required."""
    rows = "id LONG, at LONG, qty LONG, to STRUCT<zip: STRING>"
    given = [(1, 3, None, ("z",)), (1, 1, 5, None), (2, 9, 1, None), (1, 2, 6, (None,))]
    path = str(tmp_path / "rows.parquet")
    spark.createDataFrame(given, rows).coalesce(1).write.parquet(path)
    with pytest.raises(ConfigurationError, match="nulls=None: a row has all columns"):
        history_of(spark, path, "orders", format="parquet")
    kept = history_of(spark, path, "orders", format="parquet", order_by="at", nulls="keep", command="publish")
    assert _merged(spark, kept)["1"] == {"id": 1, "at": 3, "qty": None, "to": {"zip": "z"}}
    skipped = history_of(spark, path, "orders", format="parquet", order_by="at", nulls="skip")
    assert _merged(spark, skipped) == {
        "1": {"id": 1, "at": 3, "qty": 6, "to": {"zip": "z"}},
        "2": {"id": 2, "at": 9, "qty": 1},
    }
