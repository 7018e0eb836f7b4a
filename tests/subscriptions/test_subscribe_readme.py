"""The page processor/subscriptions/README.md agrees with the code."""

import re
from pathlib import Path

from processor.subscriptions import Engine, MemoryRecords, Options, SubscriptionSpec, Topic
from tests.subscriptions.desk import ORDERS, Desk

ROOM = Path(__file__).parents[2] / "processor" / "subscriptions"
TEXT = (ROOM / "README.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_runs():
    """The example of the README delivers a snapshot and the updates after it."""
    [code] = CODE
    records = [Desk().record(1, b'{"id":1,"qty":20}')]
    names = {"codec": ORDERS.codec, "KeyFields": type(ORDERS.key), "partition": 1, "records": records, "now_ms": 0}
    names |= {kind.__name__: kind for kind in (Engine, MemoryRecords, Options, SubscriptionSpec, Topic)}
    *lines, last = [line.split("  #")[0].rstrip() for line in code.splitlines()]
    exec("\n".join(lines), names)
    messages = eval(last, names)
    assert [message.command for message in messages] == ["group_begin", "group_end", "publish"]


def test_the_readme_names_every_file():
    """The README's reading order names exactly the files of the folder."""
    named = set(re.findall(r"`(\w+\.py)`", TEXT))
    assert named == {path.name for path in ROOM.rglob("*.py")} - {"__init__.py"}
