"""The commands of processor/docs/tutorial.md, in order, have the results that the page describes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.kafka.admin.admin import Admin
from tests.cli.conftest import Cli
from tests.docs.pages import block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "tutorial.md"
FOLLOW = "6. Follow a filter"


def adapted(text: str, bootstrap: str, name: str) -> str:
    """A block with the broker and the topic of the test."""
    return text.replace("localhost:9092", bootstrap).replace("orders", name)


@pytest.fixture
def reader(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Cli]:
    """A user who follows the page, with settings in a folder of the test."""
    tree = yaml.safe_load(adapted(block(PAGE, "3. Describe a topic", "yaml"), bootstrap, unique))
    cli = Cli(tmp_path, tree | {"application_id": unique})
    yield cli
    families = [f"{unique}.", f"{unique}_5s."]
    admin = Admin(tree["kafka"])
    admin.delete([name for name in admin.cluster().topics if name.startswith(tuple(families))])


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tutorial_leads_to_a_live_filtered_table(reader: Cli, bootstrap: str, unique: str) -> None:
    """Each command succeeds and prints the output that the page shows."""

    def run(section: str) -> str:
        script = adapted(block(PAGE, section, "sh"), bootstrap, unique).replace("sowstream ", f"{program} ")
        return subprocess.run(
            ["bash", "-ec", script], cwd=reader.directory, check=True, capture_output=True, text=True, timeout=150
        ).stdout

    program = " ".join(Cli.command())
    run("3. Describe a topic")
    running = [reader.start("worker"), reader.start("conflate")]
    try:
        merged = run("5. Publish an order, then a delta")
        assert merged == block(PAGE, "5. Publish an order, then a delta", "json")
        follow = adapted(block(PAGE, FOLLOW, ""), bootstrap, unique).split(maxsplit=1)[1]
        subscriber = subprocess.Popen(
            f"exec {program} {follow.strip()} --count 6 --timeout 60",
            shell=True, cwd=reader.directory, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(subscriber)
        assert subscriber.stdout is not None
        snapshot = [json.loads(subscriber.stdout.readline()) for _ in range(3)]
        assert [message["command"] for message in snapshot] == ["group_begin", "sow", "group_end"]
        run(FOLLOW)
        changes = [json.loads(line) for line in subscriber.stdout]
        assert [(item["command"], item["sow_key"], item.get("delta"), item.get("reason")) for item in changes] == [
            ("publish", "8", None, None),
            ("publish", "8", True, None),
            ("oof", "7", None, "match"),
        ]
        run("7. Query it")
        python = adapted(block(PAGE, "8. The same in Python", "python"), bootstrap, unique)
        shown = subprocess.run(
            [sys.executable, "-c", python],
            cwd=reader.directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert shown.stdout.strip() == "{'8': 9}"
    finally:
        for process in running:
            process.terminate()
            process.communicate(timeout=150)
