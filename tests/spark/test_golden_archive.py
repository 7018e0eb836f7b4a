"""The archive of every release is a history for this version, and this version's archive has the same form."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.archived import archived
from spark_integration.settings import topic_settings
from tests.golden.golden_files import NEWEST, VERSIONS, golden_topic, packed
from tests.golden.states import unpack
from tests.spark.golden_archive import make_archive

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # PySpark leaves the socket of every `collect` to the garbage collector; all of ours are closed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_archive_of_the_release_is_read(spark, version: str, tmp_path: Path) -> None:
    """Each record of the archive has the key, value, headers and place of the golden topic."""
    unpack(packed(version, "archive"), tmp_path)
    settings = topic_settings("orders", {"partitions": 1})
    for role in ("publish", "delta"):
        rows = archived(spark, str(tmp_path), settings, role, "parquet").orderBy("offset").collect()
        read = [
            (_bytes(row["key"]), _bytes(row["value"]),
             [(header["key"], _bytes(header["value"])) for header in row["headers"] or ()],
             row["partition"], row["offset"])
            for row in rows
        ]  # fmt: skip
        golden = golden_topic(version, f"orders.{role}")
        assert read == [(one.key, one.value, one.headers or [], 0, one.offset) for one in golden]


def test_an_archive_has_the_form_of_the_release(spark, tmp_path: Path) -> None:
    """Directories and columns of an archive, and the record of its last micro-batch, are those of the release."""
    unpack(packed(NEWEST, "archive"), tmp_path / "golden")
    make_archive(spark, tmp_path / "written", NEWEST)
    golden, written = _form(spark, tmp_path / "golden"), _form(spark, tmp_path / "written")
    assert written == golden
    assert golden[0] == ["_sowstream", "topic=orders.delta", "topic=orders.publish"]


def _form(spark, directory: Path) -> tuple[list[str], list[str], str, str]:
    folders = [path for path in directory.rglob("*") if path.is_dir()]
    [noted] = directory.glob("_sowstream/*.json")
    return (
        sorted(path.name for path in directory.iterdir() if not path.name.startswith((".", "_SUCCESS"))),
        sorted(str(path.relative_to(directory)) for path in folders),
        spark.read.parquet(str(directory)).schema.simpleString(),
        f"{noted.name} {noted.read_text()}",
    )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
