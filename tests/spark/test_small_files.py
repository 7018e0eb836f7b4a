from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from py4j.protocol import Py4JJavaError

from spark_integration.foundation.pyspark_private import hadoop_files, replace_file
from spark_integration.foundation.small_files import HadoopFiles, LocalFiles

pytestmark = pytest.mark.spark


@pytest.fixture(params=["local", "hadoop"])
def files(request, tmp_path: Path):
    """Files below a directory that is missing, by either way."""
    place = tmp_path / "checkpoint"
    return LocalFiles(place) if request.param == "local" else HadoopFiles(request.getfixturevalue("spark"), str(place))


def test_a_file_is_read_as_it_was_written_last(files) -> None:
    """A file is None before it is written, and has the last text after that; nothing else is left in its directory."""
    assert files.read("a/b.json") is None
    assert files.names("a") == []
    for text in ("one", "two é"):
        files.write("a/b.json", text)
        assert files.read("a/b.json") == text
    assert [name for name in files.names("a") if not name.endswith(".crc")] == ["b.json"]


def test_a_file_is_replaced_in_one_step(spark, tmp_path: Path) -> None:
    """A replacement that cannot end leaves the old file in its place."""
    (tmp_path / "old").write_text("old")
    path, _ = hadoop_files(spark, str(tmp_path), "a test")
    with pytest.raises(Py4JJavaError):
        replace_file(spark, path(str(tmp_path / "missing")), path(str(tmp_path / "old")))
    assert (tmp_path / "old").read_text() == "old"
