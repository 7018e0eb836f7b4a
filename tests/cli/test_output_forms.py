"""Output for programs: records alone, CSV, JSON of reports, statistics; log lines without colours."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from processor.config import load
from processor.kafka.clients.publisher import Publisher
from processor.runtime.worker import logging_setup

if TYPE_CHECKING:
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
    (renderer,) = logging_setup._renderers()
    line = renderer(None, "warning", {"event": "an event", "level": "warning"})
    assert ("\x1b[" in str(line)) is colours
