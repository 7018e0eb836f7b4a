"""JSONTestSuite: files that every JSON parser must accept, must reject, or may either accept or reject."""

from pathlib import Path

import pytest

from processor.codec.json import JsonCodec
from processor.errors import RecordRejected

SUITE = Path(__file__).parents[3] / "shared" / "suites" / "json" / "parsing"


def cases(prefix):
    """The files of one kind, as test parameters."""
    files = sorted(SUITE.glob(f"{prefix}_*.json"))
    if not files:
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason="no JSONTestSuite beside the project"))]
    return [pytest.param(file, id=file.stem) for file in files]


@pytest.mark.parametrize("file", cases("y"))
def test_valid_json_is_accepted(file):
    """Every valid file is read, written and read again as the same value."""
    codec = JsonCodec()
    value = codec.decode(file.read_bytes())
    assert repr(codec.decode_own(codec.encode(value))) == repr(value)


@pytest.mark.parametrize("file", cases("n"))
def test_invalid_json_is_rejected(file):
    """Every invalid file is rejected as the record's fault, never with another exception."""
    with pytest.raises(RecordRejected) as caught:
        JsonCodec().decode(file.read_bytes())
    assert caught.value.reason in {"undecodable", "too_deep"}


@pytest.mark.parametrize("file", cases("i"))
def test_ambiguous_json_is_read_or_rejected(file):
    """A file that parsers may accept or reject is rejected, or read, written and read again as the same value."""
    codec = JsonCodec()
    try:
        value = codec.decode(file.read_bytes())
    except RecordRejected:
        return
    assert repr(codec.decode_own(codec.encode(value))) == repr(value)
