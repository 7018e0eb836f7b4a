"""`sowstream dlq` on the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer import BadParameter

from processor.cli.dlq import list_letters, replay
from processor.errors import ConfigurationError, Stop
from tests.cli.conftest import Cli
from tests.endtoend.world import World

BAD: list[tuple[bytes | None, Any, dict[str, str]]] = [
    (b"1", b"{not json", {"trace": "1"}),
    (b"1", b'{"id":1}', {"command": "upsert"}),
    (b"1", b'{"id":2}', {"source": "mine"}),
]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (partial(list_letters, "oders"), "did you mean 'orders'"),
        (partial(list_letters, "orders", reason="undecodeable"), "did you mean 'undecodable'"),
        (partial(replay, "oders"), "did you mean 'orders'"),
        (partial(replay, "orders", reason="X y"), "no reason 'X y'"),
        (partial(replay, "orders", partition=1), "together"),
        (partial(replay, "orders", offset=1), "together"),
        (partial(replay, "slow"), "publish the records of their keys to 'orders' again"),
        (partial(replay, "slow", dry_run=True), "came from orders.sow, which only workers write to"),
    ],
)
def test_wrong_usage_is_rejected_before_kafka_is_asked(offline: Cli, call: Callable[..., None], said: str):
    """Wrong usage exits with code 2 and advice, before any request to Kafka."""
    with pytest.raises((ConfigurationError, BadParameter), match=re.escape(said)):
        call(config=offline.settings)


@pytest.mark.broker
@pytest.mark.long
def test_from_rejection_to_rejection(bootstrap: str, tmp_path: Path, unique: str):
    """A worker's dead letters are shown, sent back, and shown again when they are rejected again."""
    world = World(bootstrap, tmp_path, unique)
    cli = Cli(tmp_path, yaml.safe_load(world.file.read_text()))
    try:
        _from_rejection_to_rejection(world, cli)
    finally:
        world.close()


def _from_rejection_to_rejection(world: World, cli: Cli) -> None:
    name = world.name
    world.publish([(b"1", {"id": 1}, {}), *BAD, (b"1", {"id": 1, "n": 1}, {})])
    world.start()
    world.settle()

    listed = cli("dlq", "list", name)
    assert listed.stderr == f"3 dead letters of {name} wait: 1 undecodable, 1 unknown_command, 1 key_mismatch.\n"
    first = lines(listed)
    assert [letter["reason"] for letter in first] == ["undecodable", "unknown_command", "key_mismatch"]
    assert [letter["headers"] for letter in first] == [headers for *_, headers in BAD]
    assert [letter.get("text") or letter["value"] for letter in first] == ["{not json", {"id": 1}, {"id": 2}]
    assert all(letter["detail"] for letter in first)
    assert lines(cli("dlq", "list", name, "--reason", "unknown_command", "--count", "1")) == first[1:2]
    drawn = on_a_terminal(cli, "dlq", "list", name)
    assert "unknown_command" in drawn
    assert '{"id":2}' in drawn
    assert "partition" in drawn

    dry = cli("dlq", "replay", name, "--reason", "undecodable", "--dry-run")
    assert dry.stderr == f"1 of 3 waiting dead letters would be sent back to {name}.publish.\n"
    place = ("--partition", str(first[1]["partition"]), "--offset", str(first[1]["offset"]))
    sent = cli("dlq", "replay", name, *place)
    assert (sent.returncode, sent.stdout) == (0, "")
    assert sent.stderr == f"1 dead letter of {name} sent back, 2 others wait on.\n"
    with pytest.raises(Stop, match=f"no such dead letter of {name} waits at partition"):
        replay(name, partition=first[1]["partition"], offset=first[1]["offset"], config=cli.settings)

    # The letter that was sent is rejected again; the others were appended again in their order, before or after it.
    world.wait(lambda: len(world.read("dlq")) == 6, "rejecting it again")
    kept = lines(cli("dlq", "list", name, "--all"))
    assert Counter(letter["waits"] for letter in kept) == {False: 3, True: 3}
    again = {letter["reason"]: letter for letter in kept if letter["waits"]}
    assert again["unknown_command"]["headers"] == {"command": "upsert", "replay_of": first[1]["source"]}
    assert offset_of(again["unknown_command"]["source"]) > offset_of(first[2]["source"])
    assert len(world.read("sow")) == 2


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON lines of a successful command."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def offset_of(source: str) -> int:
    """The offset in a header `source`."""
    return int(source.rsplit("/", 1)[1])


def on_a_terminal(cli: Cli, *arguments: str) -> str:
    """The output of a command on a terminal of 160 columns."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "160", "TERM": "xterm"}
    with subprocess.Popen(cli.command(*arguments), stdout=theirs, cwd=cli.directory, env=environment) as running:
        assert running.wait(150) == 0
    os.close(theirs)
    told = b""
    # Linux reports the end of the other side as an error.
    with contextlib.suppress(OSError):
        while more := os.read(ours, 65_536):
            told += more
    os.close(ours)
    return told.decode()
