"""Filters, select lists, orders, windows and tables on the command line, on a real Kafka."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from processor.config import load
from processor.kafka.clients.publisher import Publisher
from tests.cli.test_commands import lines, published, write
from tests.waiting import PATIENCE_S, with_limits

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

pytestmark = pytest.mark.broker


@pytest.fixture
def shop(cli: Cli, unique: str) -> Cli:
    """Topics with three orders."""
    cli("topics", "apply")
    publisher = Publisher(load(cli.settings).kafka)
    for number, qty in ((1, 5), (2, 30), (3, 20)):
        order = {"id": number, "qty": qty, "note": {"by": "a"}}
        publisher.send(f"{unique}.sow", b"%d" % number, json.dumps(order).encode(), [("version", b"1")])
    publisher.flush(120)
    return cli


def data_of(printed: str) -> list[Any]:
    """The data of messages, without group marks."""
    return [message["data"] for message in lines(printed) if "data" in message]


def test_a_query_filters_selects_and_orders(shop: Cli, unique: str):
    """`sow` prints the matching records in order, with the selected fields and the key."""
    done = shop("sow", unique, "--filter", "/qty > 10", "--select", "-/,+/qty", "--order-by", "/qty DESC")
    assert data_of(done.stdout) == [{"id": 2, "qty": 30}, {"id": 3, "qty": 20}]
    best = shop("sow", unique, "--order-by", "/qty", "--top-n", "1", "--skip-n", "1", "--select", "-/note")
    assert data_of(best.stdout) == [{"id": 3, "qty": 20}]


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("/qtx > 10", "None of the first 3 records of {} has /qtx; did you mean /qty?\n"),
        ("/qty > 10 AND /note/bye = 'a'", "None of the first 3 records of {} has /note/bye; did you mean /note/by?\n"),
        ("/qty > 100 AND /note/by = 'a'", ""),
    ],
)
def test_a_field_that_no_record_has_is_named(shop: Cli, unique: str, condition: str, hint: str):
    """A query without an answer names the field of its filter that is in no record: it is perhaps misspelt."""
    done = shop("sow", unique, "--filter", condition, "--data")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", hint.format(unique))


def test_a_bad_filter_is_shown_with_its_place(shop: Cli, unique: str):
    """A bad filter prints no data; its place is marked by a caret, and the exit code is that of wrong usage."""
    done = shop("subscribe", unique, "--filter", "/qty > > 10")
    assert (done.returncode, done.stdout) == (2, "")
    assert "line 1, column 8" in done.stderr
    assert "\n         ^" in done.stderr


def test_a_subscription_reports_records_that_leave_its_filter(shop: Cli, unique: str):
    """The flags give a snapshot, a delta of the selected fields, and an oof with the new record."""
    running = shop.start(
        *("subscribe", unique, "--sow", "--delta", "--oof", "--filter", "/qty > 25", "--select", "-/note"),
        *("--count", "5", "--timeout", "120"),
    )
    assert running.stdout is not None
    snapshot = [json.loads(running.stdout.readline()) for _ in range(3)]
    assert [message.get("data") for message in snapshot] == [None, {"id": 2, "qty": 30}, None]
    write(shop, f"{unique}.sow", "2", {"id": 2, "qty": 40, "note": {"by": "b"}}, version="2")
    write(shop, f"{unique}.sow", "2", {"id": 2, "qty": 4, "note": {"by": "b"}}, version="3")
    out, err = running.communicate(timeout=150)
    delta, oof = lines(out)
    assert (delta["data"], delta["delta"]) == ({"id": 2, "qty": 40}, True)
    assert (oof["command"], oof["reason"], oof["data"]) == ("oof", "match", {"id": 2, "qty": 4})
    assert (running.returncode, err) == (0, "")


@pytest.mark.long
def test_the_first_of_an_order_are_followed(shop: Cli, unique: str):
    """With --top-n, a record that enters pushes another one out."""
    running = shop.start(
        *("subscribe", unique, "--sow", "--oof", "--order-by", "/qty DESC", "--top-n", "2", "--select", "-/note"),
        *("--count", "6", "--timeout", "120"),
    )
    assert running.stdout is not None
    snapshot = [json.loads(running.stdout.readline()) for _ in range(4)]
    assert [message["data"]["id"] for message in snapshot[1:3]] == [2, 3]
    write(shop, f"{unique}.sow", "1", {"id": 1, "qty": 50, "note": {}}, version="2")
    oof, entered = lines(running.communicate(timeout=150)[0])
    assert (oof["command"], oof["sow_key"], oof["reason"]) == ("oof", "3", "match")
    assert (entered["command"], entered["data"]) == ("publish", {"id": 1, "qty": 50})


@pytest.mark.long
def test_a_replay_begins_at_its_bookmark(shop: Cli, unique: str):
    """`--bookmark epoch` prints the topic's past; the last message's bookmark prints the messages after it."""
    all_of_it = lines(shop("subscribe", unique, "--bookmark", "epoch", "--count", "3", "--timeout", "120").stdout)
    assert sorted(message["data"]["id"] for message in all_of_it) == [1, 2, 3]
    write(shop, f"{unique}.sow", "4", {"id": 4}, version="1")
    more = shop("subscribe", unique, "--bookmark", all_of_it[-1]["bookmark"], "--count", "1", "--timeout", "120")
    assert data_of(more.stdout) == [{"id": 4}]


def test_records_that_match_a_filter_are_deleted(shop: Cli, unique: str):
    """`delete --filter` sends one command to each partition; only one of --key, --data and --filter is allowed."""
    done = shop("delete", unique, "--filter", "/qty > 10", "--no-wait")
    assert (done.returncode, done.stderr) == (0, f"Deletion sent to {unique}.\n")
    commands = [(record.key, record.value, record.headers) for record in published(shop, unique)]
    assert commands == [(None, None, [("command", b"sow_delete"), ("filter", b"/qty > 10")])] * 2
    late = with_limits(
        lambda limit_s: shop("delete", unique, "--filter", "/qty > 10", "--timeout", limit_s),
        lambda done: "acks are missing" in done.stderr,
    )
    assert late.returncode == 1
    assert f"acks are missing, and the time is over: 2. Does a worker run? `sowstream worker {unique}`" in late.stderr
    for wrong in ([], ["--key", "1", "--filter", "/a=1"], ["--data", "{"], ["--data", "{}", "--key", "1"]):
        assert shop("delete", unique, *wrong).returncode == 2
    bad = shop("delete", unique, "--filter", "/qty > > 10")
    assert (bad.returncode, "\n         ^" in bad.stderr) == (2, True)


@pytest.mark.long
def test_a_table_in_a_pipe_is_lines(shop: Cli, unique: str):
    """`--table` prints JSON lines if the output is not a terminal."""
    plain = shop("sow", unique, "--order-by", "/id")
    assert shop("sow", unique, "--order-by", "/id", "--table").stdout == plain.stdout
    live = shop("subscribe", unique, "--sow", "--table", "--count", "5", "--timeout", "120")
    assert [message["command"] for message in lines(live.stdout)] == ["group_begin", "sow", "sow", "sow", "group_end"]


class Terminal:
    """A command on a terminal of 24 lines."""

    def __init__(self, cli: Cli, *arguments: str) -> None:
        mine, theirs = pty.openpty()
        env = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(
            cli.command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=cli.directory, env=env
        )
        os.close(theirs)
        self._terminal = mine
        self.screen = ""

    def until(self, text: str) -> None:
        """Read until a text is drawn."""
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in self.screen:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{text!r} was never drawn: {self.screen!r}"
            if select.select([self._terminal], [], [], left_s)[0]:
                assert self._read(), f"it ended: {self.screen!r}"

    def end(self) -> int:
        """Press Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            # Its last output needs a reader.
            if select.select([self._terminal], [], [], 0.1)[0] and not self._read():
                break
        code = self.process.wait(PATIENCE_S)
        os.close(self._terminal)
        return code

    def _read(self) -> bool:
        """Read the drawn text; False if the terminal is closed."""
        try:
            self.screen += os.read(self._terminal, 65_536).decode(errors="replace")
        except OSError:
            return False
        return True


def test_a_live_table_on_a_terminal(shop: Cli, unique: str):
    """Rows are in the requested order and redrawn as they change, with or without keys; Ctrl-C exits with code 0."""
    asked = ("--table", "--no-sowkey", "--filter", "/qty > 10", "--order-by", "/qty")
    terminal = Terminal(shop, "subscribe", unique, *asked)
    try:
        terminal.until("2 records")
        assert f"{unique} where /qty > 10" in terminal.screen
        assert terminal.screen.rindex(" 20 ") < terminal.screen.rindex(" 30 ")
        write(shop, f"{unique}.sow", "1", {"id": 1, "qty": 1234, "note": {}}, version="2")
        terminal.until("1234")
        terminal.until("3 records")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.screen
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_a_live_table_counts_the_records_that_it_does_not_show(shop: Cli, unique: str):
    """A table of fewer rows than there are records says how many match, also after one comes that it does not show."""
    terminal = Terminal(shop, "subscribe", unique, "--table", "--filter", "/qty > 10", "--top-n", "1")
    try:
        terminal.until("1 of 2 records")
        write(shop, f"{unique}.sow", "9", {"id": 9, "qty": 40}, version="1")
        terminal.until("1 of 3 records")
        assert terminal.end() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
