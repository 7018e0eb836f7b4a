"""The client's page: its example of a connection prints the output shown there."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from processor.client.feeds import continuity
from tests.client.family import Family
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from processor.client import Client

README = (Path(continuity.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("\n### Several calls and topics on one connection\n")[1].split("\n### ")[0]


def test_the_bound_of_remembered_versions_is_that_of_the_page():
    """The number of keys and the bytes per key in the page are those of the code."""
    assert f"The versions of {continuity.KEYS_MAX:,} keys" in README
    assert f"{continuity.KEY_BYTES} bytes each" in README


@pytest.mark.broker
def test_the_example_of_a_connection_prints_the_output_of_the_page(client: Client, family: Family):
    """Three calls share messages: each message lists its subscriptions, and an update of two comes once."""

    def own(text: str) -> str:
        return text.replace("orders", family.name).replace("customers", family.conflated)

    [code] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    [output] = re.findall(r"```\n(orders.*?)```", SECTION, re.DOTALL)
    expected = own(output).splitlines()
    printed: list[str] = []
    steps = threading.Semaphore(0)

    def take(*values: object) -> None:
        printed.append(" ".join(map(str, values)))
        steps.release()

    family.sow("1", {"id": 1, "state": "open", "qty": 5})
    program = compile(own(code), "README.md", "exec")
    running = threading.Thread(target=exec, args=(program, {"client": client, "print": take}))
    running.start()
    for _ in range(3):
        assert steps.acquire(timeout=PATIENCE_S)
    family.sow("1", {"id": 1, "state": "open", "qty": 7}, 2)
    assert steps.acquire(timeout=PATIENCE_S)
    family.sow("1", {"id": 1, "state": "done", "qty": 7}, 3)
    assert steps.acquire(timeout=PATIENCE_S)
    with family.transaction():
        family.write(f"{family.conflated}.sow", "c", {"id": "c", "city": "Bern"}, version="1")
    assert steps.acquire(timeout=PATIENCE_S)
    client.close()
    running.join(PATIENCE_S)
    assert printed == expected
