"""The table of processor/codec/README.md says what is installed."""

import re
from pathlib import Path

from processor.codec.registry import GROUP, codec_names
from tests.codec.specimens import SPECIMENS, codec_of

TEXT = (Path(__file__).parents[2] / "processor" / "codec" / "README.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w-]+)` \| (yes|no) \|", TEXT, re.MULTILINE))

[PRESENCE] = re.findall(r"^\| `protobuf` with field presence \| (yes|no) \|", TEXT, re.MULTILINE)


def test_the_table_has_the_installed_types_and_no_others():
    """Named as a topic's settings name them."""
    assert GROUP in TEXT
    assert sorted(ROWS) == codec_names()


def test_it_says_which_can_do_deltas():
    """As the codecs themselves do."""
    said = {**{name: row == "yes" for name, row in ROWS.items()}, "protobuf-presence": PRESENCE == "yes"}
    assert {name: said[name] for name in SPECIMENS} == {name: codec_of(name).can_delta for name in SPECIMENS}


def test_every_file_it_names_exists():
    """In the folder beside it."""
    folder = Path(__file__).parents[2] / "processor" / "codec"
    assert [name for name in re.findall(r"`(\w+\.py)`", TEXT) if not (folder / name).exists()] == []
