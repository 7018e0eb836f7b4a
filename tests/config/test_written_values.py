"""Tests of settings as people write them: a value that YAML reads as another text is refused, and none is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from processor.cli.main import run
from processor.config import Config, load, settings_of
from processor.config.yaml_values import parse
from processor.errors import ConfigurationError

SECTIONS = {
    "kafka": "kafka:\n  NAME: VALUE\n",
    "schema_registry": "schema_registry:\n  NAME: VALUE\n",
    "topics.t.config": "topics:\n  t:\n    config:\n      NAME: VALUE\n",
    "views.v.config": (
        "topics: {t: {}}\nviews:\n  v:\n    underlying: t\n    fields: {/id: /id}\n    config:\n      NAME: VALUE\n"
    ),
}
"""The sections whose values are texts for Kafka or the registry."""

TAKEN = {
    "01234567'": "01234567'",
    "'01234567'": "01234567",
    '"yes"': "yes",
    '""': "",
    "true": "true",
    "True": "true",
    "false": "false",
    "5": "5",
    "-1": "-1",
    "0": "0",
    "0.5": "0.5",
    "089": "089",
    "1e3": "1e3",
    "1.0e3": "1.0e3",
    "y": "y",
    "n": "n",
    "12345678901234567890123": "12345678901234567890123",
    "[a:9092, b:9092]": "a:9092,b:9092",
    "\n    - a:9092\n    - b:9092": "a:9092,b:9092",
    "[5, true]": "5,true",
    "pass#word": "pass#word",
    "#word": None,
}
"""Values as they are written, with their text; None: refused, as it is a comment."""

REFUSED = (
    *("01234567", "-012", "0_1", "0x10", "0b11", "1_000", "+5", "22:22", "1:30:00", "190:20:30.15"),
    *("1.10", "1.0e+3", "1.", ".5", ".inf", "-.INF", ".nan", "1_0.5"),
    *("", "~", "null", "Null", "yes", "No", "on", "OFF", "YES"),
    *("2026-11-27", "2026-11-27T10:00:00Z", "2026-11-27 10:00:00"),
    *("{a: b}", "[]", "[[a]]", "[null]", "[yes]", "[01]", "[1.10]", "!!binary aGk=", "!!set {a}"),
)
"""Values of which YAML would leave another text."""


def written(section: str, value: str) -> str:
    """A file with a value in a section."""
    indented = value.replace("\n    ", "\n" + " " * (len(SECTIONS[section].split("NAME")[0].splitlines()[-1]) + 2))
    return SECTIONS[section].replace("NAME", "sasl.password").replace("VALUE", indented)


def value_of(config: Config, section: str) -> str:
    """The value that a section has."""
    owner = config.topics["t"].config if section.startswith("topics") else None
    owner = config.views["v"].config if section.startswith("views") else owner
    return (getattr(config, section) if owner is None else owner)["sasl.password"]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_value_has_the_text_that_is_written(tmp_path: Path, section: str) -> None:
    """Numbers in plain digits, true and false, and texts arrive as they are written; a list is joined by commas."""
    file = tmp_path / "sowstream.yaml"
    for text, value in TAKEN.items():
        file.write_text(written(section, text), encoding="utf-8")
        if value is None:
            with pytest.raises(ConfigurationError):
                load(file)
        else:
            assert value_of(load(file), section) == value, text


@pytest.mark.parametrize("text", REFUSED)
def test_a_value_that_would_be_another_text_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    """The error names the line, or the setting, and the remedy; it does not show the value, which may be a password."""
    file = tmp_path / "sowstream.yaml"
    for section in SECTIONS:
        file.write_text(written(section, text), encoding="utf-8")
        with pytest.raises(ConfigurationError) as caught:
            load(file)
        message = str(caught.value)
        assert "in line" in message or f"{section}: sasl.password:" in message
        assert any(one in message for one in ("write it in quotes", "write sasl.password.NAME", "remove the line"))
        assert text.lower() == "null" or len(text) < 4 or text not in message


def test_check_says_it(tmp_path: Path, capsys) -> None:
    """`sowstream check` refuses such a file with the place and the remedy."""
    file = tmp_path / "sowstream.yaml"
    file.write_text("kafka:\n  bootstrap.servers: [a:9092, b:9092]\n  sasl.password: 01234567\n", encoding="utf-8")
    assert run(["check", str(file)]) == 2
    assert "in line 3, column 18" in capsys.readouterr().err


NO_VALUES = ("!!int x", "0x_", "0b_", "!!int ''", "!!float x", "!!bool {}", "!!int []", "!!int {}", '"\\UFFFFFFFF"')
NO_VALUES += ("1" * 5_000, "[" * 5_000, "!!set x", "!!map x")
"""Texts that PyYAML answers with errors of Python's: ValueError, IndexError, TypeError, RecursionError and others."""


@pytest.mark.parametrize("text", NO_VALUES, ids=lambda text: text[:12])
def test_a_text_that_is_no_value_of_its_kind_is_a_problem_of_the_file(tmp_path: Path, capsys, text: str) -> None:
    """`parse` has one error for all that it cannot read, and `sowstream check` one line and exit code 2."""
    with pytest.raises(yaml.YAMLError):
        parse(f"a: {text}")
    file = tmp_path / "sowstream.yaml"
    file.write_text(f"kafka:\n  sasl.password: {text}\n", encoding="utf-8")
    assert run(["check", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sowstream: {file}: ")


@pytest.mark.parametrize("value", ["true", "True", "yes", "on", "YES"])
def test_a_setting_that_is_true_or_false_takes_each_word_for_it(tmp_path: Path, value: str) -> None:
    """A setting that is true or false takes yes and on as true, by YAML 1.1."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(f"runtime: {{static_membership: {value}, batch_records_max: 1_000}}\n", encoding="utf-8")
    config = load(file)
    assert (config.runtime.static_membership, config.runtime.batch_records_max) == (True, 1000)


@pytest.mark.parametrize("value", ["yes", "[no]", "{deep: [{off: on}]}"])
def test_a_plugins_settings_have_no_unquoted_words(tmp_path: Path, value: str) -> None:
    """A plug-in would take "no" for a text that is true, so such a word is refused there."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(f"topics: {{t: {{preprocess: {{use: p, settings: {{strict: {value}}}}}}}}}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="write true or false, or, for a text, write it in quotes"):
        load(file)


def test_a_key_that_is_a_word_is_a_text() -> None:
    """`on` and `no` are names where they are keys: those of a join, and countries."""
    assert parse("{on: {/a: /b}, no: 1, y: 2}") == {"on": {"/a": "/b"}, "no": 1, "y": 2}


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "on: 1\n'on': 2", "'a': 1\n\"a\": 2", "x: {on: 1, on: 2}", "1: a\n1: b"]
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, text: str) -> None:
    """Quotes make no other key of a name."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="stands here and in line"):
        load(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"kafka:\n\tsasl.password: x\n", "line 2"),
        ("kafka: {}\n".encode("utf-16"), "not UTF-8 text, from byte 0 on"),
        (b"kafka: {sasl.password: \xe4}\n", "not UTF-8 text, from byte 23 on"),
        (b"topics: {2024: {}}\n", "write|quotes"),
        (b"topics: {t: {message_type: 5}}\n", "written in quotes"),
        (b"kafka: {sasl.password: !!python/name:os.system x}\n", "line 1"),
        (b"--- {}\n--- {}\n", "line 2"),
    ],
    ids=repr,
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    """A tab, another encoding, a name that is a number, and an object of Python are errors with their place."""
    file = tmp_path / "sowstream.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        load(file)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """A file that an editor of Windows saved is read."""
    file = tmp_path / "sowstream.yaml"
    file.write_bytes("\ufefftopic_prefix: acme.\r\nkafka:\r\n  client.id: x\r\n".encode())
    config = load(file)
    assert (config.topic_prefix, config.kafka["client.id"]) == ("acme.", "x")


@pytest.mark.parametrize(
    "text", ["01234567", "1234567", "1.10", "1e3", "true", "yes", "22:22", "2026-11-27", "0x10", "a,b"]
)
def test_a_variable_of_the_environment_is_a_text(monkeypatch, text: str) -> None:
    """The environment has texts only: each arrives as it is."""
    monkeypatch.setenv("SOWSTREAM_KAFKA__SASL.PASSWORD", text)
    monkeypatch.setenv("SOWSTREAM_TOPICS__T__CONFIG__X", text)
    config = settings_of({"topics": {"t": {}}})
    assert (config.kafka["sasl.password"], config.topics["t"].config["x"]) == (text, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (True, "true"), ("x", "x"), (["a:1", "b:2"], "a:1,b:2"), (0.5, "0.5"), (None, None), ({}, None)],
    ids=repr,
)
def test_a_section_as_json_follows_the_same_rules(monkeypatch, value: object, text: str | None) -> None:
    """In JSON of the environment, too, a list is joined and null is refused."""
    monkeypatch.setenv("SOWSTREAM_KAFKA", json.dumps({"sasl.password": value}))
    if text is None:
        with pytest.raises(ConfigurationError, match=r"sasl\.password: "):
            settings_of({"topics": {"t": {}}})
    else:
        assert settings_of({"topics": {"t": {}}}).kafka["sasl.password"] == text


@pytest.mark.parametrize("text", ['{"sasl.password": 1.10}', '{"sasl.password": 1e3}', '{"a": "1", "a": "2"}'])
def test_json_that_is_ambiguous_is_refused(monkeypatch, text: str) -> None:
    """A number of which another text would be left, and a name that stands there twice, are refused."""
    monkeypatch.setenv("SOWSTREAM_KAFKA", text)
    with pytest.raises(ConfigurationError):
        settings_of({"topics": {"t": {}}})


@pytest.mark.parametrize("value", [None, {"a": 1}, [], b"x", [None]], ids=repr)
def test_a_mapping_of_a_program_follows_the_same_rules(value: object) -> None:
    """Settings that a program gives are refused where they are no text, number, truth value or list of these."""
    with pytest.raises(ConfigurationError, match=r"kafka: sasl\.password: "):
        settings_of({"kafka": {"sasl.password": value}, "topics": {"t": {}}})
