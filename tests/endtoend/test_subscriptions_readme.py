"""The example of a subscription in processor/docs/concepts.md works as described, with the front page's settings."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from processor.subscriptions import Options
from tests.cli.conftest import Cli
from tests.endtoend.test_conflated_readme import CONCEPTS, shop

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shop"]

SECTION = CONCEPTS.split("\n## Subscriptions\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```\n(.*?)```$", SECTION, re.DOTALL | re.MULTILINE)


def test_the_page_has_every_option() -> None:
    """The page lists all options except `send_keys`, which is always on, with `filter` first."""
    rows = "\n".join(line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == {"filter", *Options._fields} - {"send_keys"}


@pytest.mark.broker
@pytest.mark.long
def test_the_example_prints_the_lines_of_the_page(shop: Cli, unique: str) -> None:
    """The shell publishes, and a subscriber prints the page's lines."""
    program = " ".join(Cli.command())
    commands, said = (block.replace("orders", unique).replace("sowstream ", f"{program} ") for block in BLOCKS)
    subscribe, publish = commands.splitlines()
    lines = said.splitlines()
    assert shop("topics", "apply").returncode == 0
    worker = shop.start("worker")
    subscriber = subprocess.Popen(
        f"exec {subscribe.removesuffix('&').strip()} --count {len(lines)} --timeout 120",
        shell=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=shop.directory,
    )
    try:
        assert subscriber.stdout is not None
        heard = _lines(subscriber.stdout)
        assert [next(heard), next(heard)] == lines[:2]
        subprocess.run(publish, shell=True, check=True, cwd=shop.directory, timeout=150)
        assert list(heard) == lines[2:]
        assert subscriber.wait(150) == 0
    finally:
        for process in (subscriber, worker):
            process.terminate()
            process.wait(150)
        for pipe in (subscriber.stdout, worker.stdout, worker.stderr):
            if pipe is not None:
                pipe.close()


def _lines(pipe: Iterator[str]) -> Iterator[str]:
    return (line.rstrip("\n") for line in pipe)
