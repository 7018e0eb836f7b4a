"""The table in processor/codec/README.md matches the installed message types."""

import re
from pathlib import Path

from processor.codec.contract import GROUP, codec_names
from tests.codec.specimens import SPECIMENS, codec_of

TEXT = (Path(__file__).parents[2] / "processor" / "codec" / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w-]+)` \| (yes|no) \|", TEXT, re.MULTILINE))

[PRESENCE] = re.findall(r"^\| `protobuf` with field presence \| (yes|no) \|", TEXT, re.MULTILINE)


def test_the_table_has_the_installed_types_and_no_others():
    """The table lists exactly the installed types, under their names in the settings."""
    assert GROUP in TEXT
    assert sorted(ROWS) == codec_names()


def test_the_table_marks_the_types_with_deltas():
    """The table's column on deltas agrees with the codecs."""
    documented = {**{name: row == "yes" for name, row in ROWS.items()}, "protobuf-presence": PRESENCE == "yes"}
    assert {name: documented[name] for name in SPECIMENS} == {name: codec_of(name).can_delta for name in SPECIMENS}


def test_every_file_in_the_readme_exists():
    """Every file that the README names exists in its folder."""
    folder = Path(__file__).parents[2] / "processor" / "codec"
    assert [name for name in re.findall(r"`(\w+\.py)`", TEXT) if not (folder / name).exists()] == []
