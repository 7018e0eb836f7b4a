"""The examples of processor/docs/concepts.md work as described, with the front page's settings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.config import ConflatedConfig
from processor.kafka.admin.admin import Admin
from processor.subscriptions import Options
from tests.cli.conftest import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["shop"]


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


SUBSCRIPTIONS = CONCEPTS.split("\n## Subscriptions\n")[1].split("\n## ")[0]
SUBSCRIPTION_BLOCKS = re.findall(r"^```\n(.*?)```$", SUBSCRIPTIONS, re.DOTALL | re.MULTILINE)


def test_the_page_has_every_option() -> None:
    """The page lists all options except `send_keys`, which is always on, with `filter` first."""
    rows = "\n".join(line.split("|")[1] for line in SUBSCRIPTIONS.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == {"filter", *Options._fields} - {"send_keys"}


@pytest.mark.broker
@pytest.mark.long
def test_the_subscription_prints_the_lines_of_the_page(shop: Cli, unique: str) -> None:
    """The shell publishes, and a subscriber prints the page's lines."""
    program = " ".join(Cli.command())
    commands, said = (
        block.replace("orders", unique).replace("sowstream ", f"{program} ") for block in SUBSCRIPTION_BLOCKS
    )
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
