"""The archive of every release is a history for this version, and this version's archive has the same form."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.moves.archived import archived
from tests.golden.golden_files import VERSIONS, golden_topic, packed
from tests.golden.states import unpack
from tests.spark.golden_archive import make_archive

pytestmark = pytest.mark.spark

ARCHIVED = [version for version in VERSIONS if packed(version, "archive").exists()]
"""The versions with an archive: a new one is made where its form has changed, or for a release."""


@pytest.mark.parametrize("version", ARCHIVED)
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
    unpack(packed(ARCHIVED[-1], "archive"), tmp_path / "golden")
    make_archive(spark, tmp_path / "written", ARCHIVED[-1])
    golden, written = _form(spark, tmp_path / "golden"), _form(spark, tmp_path / "written")
    assert written == golden
    assert golden[0] == ["_sowstream", "topic=orders.delta", "topic=orders.publish"]


def test_a_turkish_driver_writes_an_archive(spark, tmp_path: Path) -> None:
    """The form of an archive does not depend on the language of the driver's host."""
    unpack(packed(ARCHIVED[-1], "archive"), tmp_path / "golden")
    locales = spark._jvm.java.util.Locale
    before = locales.getDefault()
    locales.setDefault(locales.forLanguageTag("tr-TR"))
    try:
        make_archive(spark, tmp_path / "written", ARCHIVED[-1])
    finally:
        locales.setDefault(before)
    assert _form(spark, tmp_path / "written") == _form(spark, tmp_path / "golden")


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
