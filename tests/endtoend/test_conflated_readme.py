"""The example of a conflated topic in processor/docs/concepts.md works as described, with the front page's settings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.config import ConflatedConfig
from processor.kafka.admin.admin import Admin
from tests.cli.conftest import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONCEPTS = (ROOT / "processor" / "docs" / "concepts.md").read_text(encoding="utf-8")
SECTION = CONCEPTS.split("\n## Conflated topics\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```\n(.*?)```$", SECTION, re.DOTALL | re.MULTILINE)


def test_the_page_has_every_setting() -> None:
    """The page lists the settings of the model, and no others."""
    rows = "\n".join(line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(ConflatedConfig.model_fields)


@pytest.fixture
def shop(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Cli]:
    """Create the page's settings and a terminal, with names of the test's own."""
    [text] = re.findall(r"```yaml\n# sowstream.yaml\n(.*?)```", README, re.DOTALL)
    tree = yaml.safe_load(text.replace("orders", unique).replace("localhost:9092", bootstrap))
    cli = Cli(tmp_path, tree | {"application_id": unique})
    yield cli
    names = [
        f"{unique}{copy}.{role}" for copy in ("", "_5s") for role in ("publish", "sow", "delta", "ack", "dlq", "mark")
    ]
    admin = Admin(tree["kafka"])
    admin.delete([name for name in names if name in admin.cluster().topics])


@pytest.mark.broker
@pytest.mark.long
def test_the_example_prints_the_lines_of_the_page(shop: Cli, unique: str) -> None:
    """The shell publishes, and a subscriber of the copy prints the page's lines."""
    program = " ".join(Cli.command())
    commands, first, more, second = (block.replace("orders", unique) for block in BLOCKS)
    subscribe, publish = commands.splitlines()
    assert shop("topics", "apply").returncode == 0
    running = [shop.start("worker"), shop.start("conflate")]
    try:
        subscriber = shop.start(*subscribe.removesuffix("&").split()[1:], "--count", "2", "--timeout", "120")
        running.append(subscriber)
        assert subscriber.stdout is not None
        for command, said in ((publish, first), (more, second)):
            shell = command.replace("| sowstream", f"| {program}")
            subprocess.run(["bash", "-c", shell], cwd=shop.directory, check=True, capture_output=True, timeout=150)
            assert _timeless(subscriber.stdout.readline()) == _timeless(said)
    finally:
        for process in running:
            process.terminate()
            process.communicate(timeout=120)


def _timeless(line: str) -> str:
    return re.sub(r'"[0-9-]+T[0-9:.]+Z"', '"a time"', line)
