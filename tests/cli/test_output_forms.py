"""The forms of a command's output: JSON lines, tables, and the log on a terminal."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from processor.cli import dlq, output, records, worker
from processor.cli.live_table import Sheet, picture
from processor.cli.worker import shorten_log
from processor.client import Message
from processor.config import Config, load
from processor.kafka.clients.publisher import Publisher
from processor.runtime.worker import logging_setup
from processor.subscriptions.request.record_order import SortOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Cli


@pytest.fixture
def stock(cli: Cli, unique: str) -> Cli:
    """A topic with two records of different fields, one of them deleted and written again."""
    cli("topics", "apply")
    publisher = Publisher(load(cli.settings).kafka)
    version = [("version", b"1")]
    first, second = {"id": 1, "note": 'a "b", c'}, {"id": 2, "in": {"x": 1}}
    for key, order in ((b"1", first), (b"2", {"id": 2}), (b"2", None), (b"2", second)):
        publisher.send(f"{unique}.sow", key, None if order is None else json.dumps(order).encode(), version)
    publisher.flush(120)
    return cli


@pytest.mark.broker
def test_records_alone_and_as_csv(stock: Cli, unique: str):
    """`--data` prints a record a line; `--format csv` prints a column for each field, with objects as JSON."""
    alone = stock("sow", unique, "--data", "--order-by", "/id")
    assert [json.loads(line) for line in alone.stdout.splitlines()] == [
        {"id": 1, "note": 'a "b", c'},
        {"id": 2, "in": {"x": 1}},
    ]
    table = stock("sow", unique, "--format", "csv", "--order-by", "/id")
    rows = list(csv.reader(io.StringIO(table.stdout)))
    assert rows == [["id", "note", "in"], ["1", 'a "b", c', ""], ["2", "", '{"x":1}']]


@pytest.mark.broker
def test_statistics_count_records_and_not_updates(stock: Cli, unique: str):
    """A record that was deleted and came back counts once; offsets count each update."""
    done = stock("stats", unique, "--json")
    assert done.returncode == 0, done.stderr
    partitions = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(one["records"] for one in partitions) == 2
    assert sum(one["offsets"] for one in partitions) == 4
    values = [{"id": 1, "note": 'a "b", c'}, {"id": 2, "in": {"x": 1}}]
    assert sum(one["record_bytes"] for one in partitions) == sum(1 + len(json.dumps(value)) for value in values)
    assert "2 records" in stock("stats", unique).stderr


@pytest.mark.broker
def test_the_statistics_of_a_missing_topic_are_an_error(cli: Cli, unique: str):
    """Without the Kafka topic, the command has the advice that creates it."""
    done = cli("stats", unique)
    assert (done.returncode, "sowstream topics apply" in done.stderr) == (2, True)


def test_reports_as_json(offline: Cli):
    """`doctor`, `plugins` and `check` print an object for each line of their table."""
    findings = [json.loads(line) for line in offline("doctor", "--json").stdout.splitlines()]
    assert {"level", "subject", "found", "to_do"} == set(findings[0])
    [connection] = [finding for finding in findings if finding["subject"].startswith("connect ")]
    assert connection["level"] == "fail"
    assert "nothing listens on this port" in connection["found"]
    assert any(finding["subject"] == "settings" and finding["level"] == "ok" for finding in findings)
    plugins = [json.loads(line) for line in offline("plugins", "--json").stdout.splitlines()]
    assert ("sowstream.codecs", "json") in {(plugin["group"], plugin["name"]) for plugin in plugins}


def test_data_is_utf8_in_any_locale(offline: Cli):
    """Output in a pipe is UTF-8 in an ASCII locale: no character is lost, and none ends the command."""
    offline.settings.write_text(
        "topics: {a: {}}\nconflated: {b: {underlying: a, filter: '/größe = ='}}", encoding="utf-8"
    )
    env = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        offline.command("check"), cwd=offline.directory, env=env, capture_output=True, timeout=150, check=False
    )
    assert (done.returncode, "/größe" in done.stdout.decode()) == (2, True), done.stderr


def test_the_shell_completes_topics_of_the_settings(offline: Cli, monkeypatch: pytest.MonkeyPatch):
    """After `sowstream sow sl`, the shell offers the topics of the settings file that begin so."""
    for name, value in {
        "_SOWSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": "sowstream sow sl",
        "COMP_CWORD": "2",
    }.items():
        monkeypatch.setenv(name, value)
    assert offline().stdout.split() == ["slow", "slower"]


@pytest.mark.broker
def test_the_shell_completes_topics_of_the_directory(cli: Cli, unique: str, monkeypatch: pytest.MonkeyPatch):
    """With Kafka's address alone, the shell offers the topics of the topic directory; an absent Kafka offers none."""
    cli("topics", "apply")
    address = load(cli.settings).kafka["bootstrap.servers"]
    cli.settings.unlink()
    monkeypatch.setenv("_SOWSTREAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "4")
    monkeypatch.setenv("COMP_WORDS", f"sowstream get --bootstrap {address} {unique}")
    assert cli().stdout.split() == [unique, f"{unique}_slow"]
    monkeypatch.setenv("COMP_WORDS", f"sowstream get --bootstrap 127.0.0.1:1 {unique}")
    absent = cli()
    assert (absent.stdout.strip(), absent.stderr) == ("", "")


def test_the_doctor_checks_the_settings_before_kafka(offline: Cli):
    """A wrong rule is reported although Kafka is away."""
    rules = "topics: {orders: {merge_rules: {/a: summ}}}"
    offline.settings.write_text(f"kafka: {{bootstrap.servers: '127.0.0.1:1'}}\n{rules}\n")
    done = offline("doctor")
    assert done.returncode == 1
    assert "fail\tsettings of orders\t" in done.stdout
    assert "did you mean 'sum'" in done.stdout


@pytest.mark.parametrize(("variable", "colours"), [("1", False), ("", True)])
def test_log_lines_obey_no_color(monkeypatch: pytest.MonkeyPatch, variable: str, colours: bool):
    """With NO_COLOR, log lines on a terminal have no escape sequences."""
    monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setattr(logging_setup.sys.stderr, "isatty", lambda: True, raising=False)
    *_, renderer = logging_setup._renderers()
    line = renderer(None, "warning", {"event": "an event", "level": "warning"})
    assert ("\x1b[" in str(line)) is colours


def test_a_traceback_on_a_terminal_controls_nothing(monkeypatch: pytest.MonkeyPatch):
    """Control characters of a record that an error quotes are question marks, in all errors of the chain."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(logging_setup.sys.stderr, "isatty", lambda: True, raising=False)
    error = ValueError("cannot take \x1b[2J")
    error.__cause__ = ValueError("a title\x1b]0;x\x07")
    line: Any = {"event": "failed", "level": "warning", "exc_info": error}
    for step in logging_setup._renderers():
        line = step(None, "warning", line)
    assert "ValueError: cannot take ?[2J" in line
    assert "ValueError: a title?]0;x?" in line
    assert "\x1b" not in line


def drawn(
    sheet: Sheet, rows_max: int | None = None, elapsed_s: float | None = None, matching: int | None = None
) -> list[str]:
    """The lines drawn on a terminal of 80 columns."""
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(picture(sheet, "orders", rows_max, elapsed_s, matching))
    return [line.strip() for line in captured.get().splitlines() if line.strip()]


def told(*messages: Message, order: str | None = None) -> Sheet:
    """The sheet after messages, one per second."""
    sheet = Sheet(SortOrder(order))
    for second, message in enumerate(messages):
        sheet.take(message, float(second))
    return sheet


def test_records_and_deltas_become_rows():
    """A record is a row, a delta changes its cells and empties removed ones; each field is a column."""
    sheet = told(
        Message("group_begin", "orders"),
        Message("sow", "orders", "2", {"id": 2, "note": "x", "legs": [1, 2]}),
        Message("sow", "orders", "1", {"id": 1, "state": "new"}),
        Message("group_end", "orders"),
        Message("publish", "orders", "2", {"id": 2, "qty": 7}, delta=True, removed=("/note",)),
    )
    assert sheet.records == {"2": {"id": 2, "legs": [1, 2], "qty": 7}, "1": {"id": 1, "state": "new"}}
    lines = drawn(sheet, 10, 3.2)
    assert lines[0] == "orders"
    assert lines[1].split() == ["id", "state", "legs", "qty"]
    assert [line.split() for line in lines[3:5]] == [["1", "new"], ["2", "[1,2]", "7"]]
    assert lines[-1] == "2 records, 5 messages in 3 s"


def test_an_oof_removes_its_row():
    """An oof removes its row; a repeated snapshot replaces all rows."""
    sheet = told(
        Message("sow", "orders", "1", {"id": 1}),
        Message("sow", "orders", "2", {"id": 2}),
        Message("oof", "orders", "1", {"id": 1}, reason="deleted"),
    )
    assert list(sheet.records) == ["2"]
    sheet.take(Message("group_begin", "orders"), 9.0)
    assert sheet.records == {}


def test_rows_stand_in_the_order_asked_for():
    """Rows are sorted in the order of the subscription; a part of those that match is counted as one."""
    records = [Message("sow", "orders", str(n), {"id": n, "px": n % 3}) for n in range(5)]
    sheet = told(*records, order="/px DESC,/id")
    assert [key for key, _ in sheet.rows()] == ["2", "1", "4", "0", "3"]
    assert drawn(sheet, 3, 1.0)[-1] == "3 of 5 records, 5 messages in 1 s"
    assert drawn(sheet, 9, 1.0, 3_000)[-1] == "5 of 3,000 records, 5 messages in 1 s"
    assert drawn(sheet)[-1] == "5 records"


def test_changed_cells_are_bright_for_a_while():
    """The cells of an update are bright until they are forgotten; those of a snapshot never are."""
    sheet = told(
        Message("sow", "orders", "1", {"id": 1, "qty": 1}),
        Message("publish", "orders", "1", {"id": 1, "qty": 2}, delta=True),
    )
    assert sheet.moved_s == {("1", "qty"): 1.0}
    sheet.forget(1.5)
    assert sheet.moved_s == {}


def test_records_without_fields_have_one_column():
    """A record that is no object, such as bytes, is shown as a whole."""
    sheet = told(Message("sow", "blobs", "a", b"\x00\xff"))
    assert drawn(sheet)[1] == "value"
    assert drawn(sheet)[3] == '"AP8="'


def test_one_record_is_counted_as_one():
    """One record and one message have the singular."""
    sheet = told(Message("sow", "orders", "1", {"id": 1}))
    assert drawn(sheet, 10, 1.0)[-1] == "1 record, 1 message in 1 s"


@pytest.mark.parametrize("width", [44, 60, 100])
def test_a_narrow_terminal_breaks_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
):
    """The columns that do not fit into the terminal come below the table, with the names of their rows."""
    columns = ("topic", "partition", "owner", "offset", "lag", "held", "what to do")
    split = ("by_state.split", "0", "host-b765bd54-0", "4000012", "869", "open_transaction", "`sowstream transactions`")
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    output.table(columns, [split, ("orders", "12", "no worker", "1", "-", "", "")])
    printed = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, printed.splitlines())) <= width
    assert {word for cell in split for word in cell.split()} <= {word.strip(":;") for word in printed.split()}
    assert ("by_state.split 0:" in printed) is (width < 100)
    assert ("what to do: `sowstream transactions`" in " ".join(printed.split())) is (width < 100)
    assert ("lag: 869" in printed) is (width == 44)
    output.table(("", "topic", "what is wrong"), [])
    assert "what is wrong" in capsys.readouterr().out
    output.table(("", "topic", "what is wrong"), [("fail", "orders", "x" * 200)])
    assert "what is wrong:" not in capsys.readouterr().out  # A word longer than any terminal does not count.


@pytest.mark.parametrize("form", ["live", "csv", "json", "table", "dlq", "error", "log"])
def test_a_record_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
):
    """Control characters of a record are question marks on a terminal in all forms of output; a pipe gets them."""
    clipboard, other_order = "\x1b]52;c;cm0=\x07\r\x9b2J", "\u202e"
    text, shown = f"a{clipboard}{other_order}b", "a?]52;c;cm0=???2J?b"

    def show() -> None:
        message = Message("sow", "orders", "1", {f"c{clipboard}": text})
        if form == "live":
            print("\n".join(drawn(told(message))))
        elif form == "csv":
            records._print_csv([message])
        elif form == "json":
            output.data(Message("sow", "orders", "1", "a\x9b2J").to_json())
        elif form == "table":
            output.table(("key",), [(text,)])
        elif form == "dlq":
            print(dlq._cell(text.encode()))
        elif form == "error":
            output.inform(text)
        else:
            cleaned: Any = {"event": text, "key": text, "level": "warning"}
            for processor in logging_setup._renderers():
                cleaned = processor(None, "warning", cleaned)
            print(cleaned)

    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True, raising=False)
    show()
    printed = re.sub("\x1b\\[[0-9;]*m", "", "".join(capsys.readouterr()))
    assert not set(printed) & set("\x1b\x07\r\x9b\u202e"), repr(printed)
    assert ("a?2J" if form == "json" else shown) in printed
    if form in ("csv", "json"):
        monkeypatch.setattr(output.sys.stdout, "isatty", lambda: False, raising=False)
        show()
        assert "\x9b2J" in capsys.readouterr().out


CONFIG = Config.model_validate({"topics": {"orders": {"partitions": 2}}})


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    """A handler of the root logger that keeps the records."""
    kept: logging.Handler = logging.NullHandler()
    logging.getLogger().addHandler(kept)
    yield kept
    logging.getLogger().removeHandler(kept)


def passes(handler: logging.Handler, level: int = logging.INFO, **event: Any) -> bool:
    """Return whether an event gets through the handler's filters."""
    return bool(handler.filter(logging.LogRecord("sowstream", level, "", 0, event, None, None)))


def test_a_start_is_a_line_for_each_topic(
    handler: logging.Handler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The events of a start are dropped for one line; warnings, other events and later moves stay."""
    monkeypatch.setattr(worker.sys.stderr, "isatty", lambda: True, raising=False)
    shorten_log(CONFIG, ["orders"])
    for other in set(logging.getLogger().handlers) - {handler}:
        other.filters[:] = [one for one in other.filters if one not in handler.filters]
    start: list[dict[str, Any]] = [
        {"event": "settings"},
        {"event": "assigned", "topic": "orders.publish", "partitions": [0, 1]},
        {"event": "local state opened"},
        {"event": "restored", "topic": "orders.sow", "partition": 0},
    ]
    assert [passes(handler, **event) for event in start] == [False] * 4
    assert capsys.readouterr().err == ""
    assert not passes(handler, event="restored", topic="orders.sow", partition=1)
    assert capsys.readouterr().err.startswith("orders: 2 partitions, ready in ")
    assert passes(handler, event="caught up")
    assert passes(handler, logging.WARNING, event="restored")
    assert passes(handler, event="assigned", topic="orders.publish", partitions=[2])
    assert not passes(handler, event="restored", topic="orders.sow", partition=2)


def test_a_log_for_programs_is_unchanged(handler: logging.Handler) -> None:
    """Without a terminal nothing is dropped."""
    shorten_log(CONFIG, ["orders"])
    assert passes(handler, event="settings")
    assert handler.filters == []
