"""The commands of README's five minutes and of processor/docs/tutorial.md have the results that the pages describe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.kafka.admin.admin import Admin
from tests.cli.conftest import Cli
from tests.docs.pages import block
from tests.programs.faults.broker.ports import quiet_port
from tests.trial.conftest import CTRL_C, Up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "tutorial.md"
README = "../../README.md"
FIVE_MINUTES = "In five minutes"
DESCRIBE = "2. Describe the topics"
START = "3. Start everything"
PUBLISH = "4. Publish an order, then a delta"
FOLLOW = "5. Follow a filter"
QUERY = "6. Query it"
PYTHON = "7. The same in Python"
PATIENCE_S = 150


def adapted(text: str, bootstrap: str, name: str) -> str:
    """A block with the broker and the topics of the test."""
    text = text.replace("localhost:9092", bootstrap).replace("by_state", f"{name}_by_state")
    return re.sub(r"\borders", name, text)


def shell(directory: Path, script: str) -> str:
    """The output of a script in which each command succeeds."""
    program = " ".join(Cli.command())
    script = re.sub(r"\bsowstream ", f"{program} ", script)
    command = ["bash", "-ec", "set -o pipefail\n" + script]
    return subprocess.run(
        command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
    ).stdout


def python(directory: Path, program: str) -> str:
    """The output of a Python program."""
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
    ).stdout


@pytest.fixture
def reader(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Cli]:
    """A user who follows the tutorial, with settings in a folder of the test."""
    tree = yaml.safe_load(adapted(block(PAGE, DESCRIBE, "yaml"), bootstrap, unique))
    gateway = {"gateway": {"listen": f"127.0.0.1:{quiet_port()}"}}
    cli = Cli(tmp_path, tree | {"application_id": unique} | gateway)
    yield cli
    admin = Admin(tree["kafka"])
    admin.delete([name for name in admin.cluster().topics if name.startswith((f"{unique}.", f"{unique}_"))])


@pytest.mark.broker
@pytest.mark.timeout(600)
def test_the_tutorial_leads_to_a_live_filtered_table(reader: Cli, bootstrap: str, unique: str) -> None:
    """Each command succeeds and prints the output that the page shows; Ctrl-C twice ends everything in order."""

    def run(section: str) -> str:
        return shell(reader.directory, adapted(block(PAGE, section, "sh"), bootstrap, unique))

    assert block(PAGE, START, "").strip() == "sowstream up"
    with Up(reader.directory, on_terminal=True) as up:
        shown = up.until("Ctrl-C ends everything.")
        lines = [adapted(line, bootstrap, unique) for line in block(PAGE, START, "text").splitlines()]
        assert shapes(lines) <= shapes(shown.splitlines())
        assert run(PUBLISH) == block(PAGE, PUBLISH, "json")
        follow = adapted(block(PAGE, FOLLOW, ""), bootstrap, unique).split(maxsplit=1)[1]
        program = " ".join(Cli.command())
        with subprocess.Popen(
            f"exec {program} {follow.strip()} --count 6 --timeout 60",
            shell=True, cwd=reader.directory, stdout=subprocess.PIPE, text=True,
        ) as subscriber:  # fmt: skip
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
        run(QUERY)
        assert python(reader.directory, adapted(block(PAGE, PYTHON, "python"), bootstrap, unique)).strip() == "{'8': 9}"
        assert sum("guard.py" in " ".join(one.cmdline()) for one in up.programs) == 2
        up.press(CTRL_C)
        up.press(CTRL_C)
        assert up.end() == 0, up.output
        assert up.output.endswith("Stopped.\n")
        assert up.left() == []


def shapes(lines: list[str]) -> set[str]:
    """Lines without their numbers."""
    return {re.sub(r"[\d.]+", "N", line) for line in lines}


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_five_minutes_of_readme(tmp_path: Path, unique: str) -> None:
    """Its commands work on the broker that `up` starts, in a pipe with JSON lines alone; SIGTERM ends all of it."""
    bootstrap = f"localhost:{quiet_port()}"

    def of_page(language: str) -> str:
        return adapted(block(README, FIVE_MINUTES, language), bootstrap, unique)

    settings = yaml.safe_load(of_page("yaml")) | {"gateway": {"listen": f"127.0.0.1:{quiet_port()}"}}
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump(settings))
    assert block(README, FIVE_MINUTES, "").splitlines()[1].split("#")[0].split() == ["sowstream", "up"]
    with Up(tmp_path, on_terminal=False, environment={"XDG_STATE_HOME": str(tmp_path / "xdg")}) as up:
        events = [json.loads(line) for line in up.until('"ready"').splitlines()]
        assert {event["topic"]: event["partitions"] for event in events if event["event"] == "topic ready"} == {
            unique: 4, f"{unique}_5s": 4, f"{unique}_by_state": 4
        }  # fmt: skip
        subscribe = f"subscribe {unique} --sow --delta"
        printed = shell(tmp_path, of_page("sh").replace(subscribe, f"{subscribe} --count 3 --timeout 60")).splitlines()
        assert printed[0] == '{"id":7,"item":"tea","qty":3,"state":"held"}'
        assert [json.loads(line)["command"] for line in printed[1:4]] == ["group_begin", "sow", "group_end"]
        lines = python(tmp_path, of_page("python")).splitlines()
        assert lines[0] == "{'id': 7, 'item': 'tea', 'qty': 4, 'state': 'held'}"
        assert sorted(lines[1:5]) == [f"{number} {number}" for number in range(16, 20)]
        assert lines[5:] == ["19 {'id': 19, 'qty': 19, 'state': 'held'}"]
        assert "java" in {program.name() for program in up.programs}
        up.terminate()
        assert up.end() == 0, up.output
        assert up.left() == []
