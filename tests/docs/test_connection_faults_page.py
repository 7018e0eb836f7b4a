"""The page of connection faults lists those of the code."""

import re
from pathlib import Path
from typing import get_args

from processor.kafka.connection_faults import Fault, Kind

_PAGE = Path(__file__).parents[2] / "processor" / "docs" / "reference" / "connection-faults.md"


def test_the_page_lists_each_fault_and_whether_it_is_waited_for() -> None:
    """The table has exactly the kinds of faults, in their order, with their wait."""
    rows = re.findall(r"^\| `(\w+)` \| (yes|no|services) \|", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    faults = [Fault(kind, "h:1") for kind in get_args(Kind)]
    waits = ["services" if fault.is_wrong_name else "no" if fault.is_final else "yes" for fault in faults]
    assert rows == [(fault.kind, wait) for fault, wait in zip(faults, waits, strict=True)]


def test_the_words_of_each_fault_are_on_the_page() -> None:
    """The table of messages has each kind of fault, in its order, and Sowstream's sentence is that of the code."""
    table = _PAGE.read_text(encoding="utf-8").partition("## Messages")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(get_args(Kind))
    for kind, _, _, words in rows:
        assert Fault(kind, "").to_do.partition("{")[0].partition("(")[0].strip() in words
