"""The messages that a reviewer found weakest: each names the place, the problem and the remedy."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

import pytest

from processor.client import Client
from processor.client.publish.deleting import Selection, check
from processor.codec import codec_options, load_codec
from processor.config import Config, TopicConfig, load
from processor.config.section import ApplicationId, TopicName
from processor.config.suggestions import PATTERNS
from processor.errors import ConfigurationError, FilterError, RecordRejected
from processor.filter import compile_filter
from processor.subscriptions.request.record_order import SortOrder
from processor.wire.publisher_headers import expect_version_header, named_headers, time_to_live_header

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


@pytest.mark.parametrize("command", [("worker",), ("sow", "orders"), ("get", "orders", "7"), ("topics", "check")])
def test_a_missing_settings_file_is_named(offline: Cli, command: tuple[str, ...]):
    """Without settings, each command names the file that it looked for, and the flag."""
    offline.settings.unlink()
    done = offline(*command)
    assert done.returncode == 2
    assert f"there is no settings file {offline.settings}" in done.stderr
    assert "or name a file: -c FILE" in done.stderr
    offline.settings.write_text(done.stderr.split("`")[1])
    assert offline("check").returncode == 0
    assert "Client(" not in done.stderr


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("check", "no.yaml"), "sowstream check FILE"),
        (("check",), "sowstream check FILE"),
        (("get", "orders", "7", "-c", "no.yaml"), "-c FILE"),
    ],
)
def test_a_wrong_file_is_refused_with_the_words_of_the_command(offline: Cli, command: tuple[str, ...], names: str):
    """The error of a settings file that is not there names what the command takes: `check` has no `-c`."""
    offline.settings.unlink()
    done = offline(*command)
    assert done.returncode == 2
    assert f".yaml: No such file or directory; name the settings file: {names}\n" in done.stderr


def test_a_name_that_kafka_cannot_have_is_explained_in_words(offline: Cli):
    """A topic's name with a space gets words and not a regular expression, and the place is the name."""
    offline.settings.write_text("application_id: a b\ntopic_prefix: x!\ntopics: {or ders: {}}")
    done = offline("check")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert "  topics.or ders: expected a name of up to 200 letters, digits, _ and -" in lines
    assert "  application_id: expected a name of up to 100 letters, digits, dots, _ and -" in lines
    assert "  topic_prefix: expected letters and digits, and at the end a dot, _ or -" in lines
    assert "String should match" not in done.stderr


@pytest.mark.parametrize(
    ("section", "place", "sentence"),
    [
        ("enrich: {total: '/qty * /px'}", "enrich.0", "'total' is no path; write /total, or name a plug-in: use"),
        ("enrich: {/total: '/qty', px: '/px'}", "enrich.0", "'px' is no path; write /px, or name a plug-in: use"),
        ("preprocess: [{seting: 1}]", "preprocess.0", "'seting' is no path; write /seting, or name a plug-in: use"),
        (
            "enrich: {use: large, setings: {}}",
            "enrich.0.setings",
            "there is no setting 'setings'; did you mean 'settings'?",
        ),
    ],
)
def test_a_mistake_in_a_step_names_the_step(offline: Cli, section: str, place: str, sentence: str):
    """A step with a field that is no path, or with an unknown setting, is answered by what a step may have."""
    offline.settings.write_text(f"topics: {{a: {{{section}}}}}")
    done = offline("check")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, [f"  topics.a.{place}: {sentence}"])


def test_a_setting_that_is_required_is_called_missing(offline: Cli):
    """A processor without `use` is told so in words, with the place."""
    offline.settings.write_text("processors: {x: {underlying: orders}}\ntopics: {orders: {}}")
    done = offline("check")
    assert "  processors.x.use: missing; it is required" in done.stderr.splitlines()


def test_the_words_are_those_of_the_patterns_in_force():
    """The texts of patterns belong to the patterns that the settings have."""
    prefix = typing.get_type_hints(Config, include_extras=True)["topic_prefix"]
    patterns = {
        rule.pattern
        for annotated in (TopicName, ApplicationId, prefix)
        for field in typing.get_args(annotated)
        for rule in getattr(field, "metadata", ())
        if hasattr(rule, "pattern")
    }
    assert patterns == set(PATTERNS)


@pytest.mark.parametrize("value", ["5m", "abc", None, float("nan"), -1])
def test_an_expiration_that_is_no_time_is_rejected_with_an_example(value: Any):
    """`expiration` takes seconds; another type is no TypeError about operators."""
    with pytest.raises(RecordRejected, match=r"it is seconds to live, such as 300, up to a hundred years"):
        time_to_live_header(value)


@pytest.mark.parametrize("value", ["x", None, 1.5, -1])
def test_a_version_that_is_no_number_is_rejected(value: Any):
    """`expect_version` takes a version; another type is no TypeError about operators."""
    with pytest.raises(RecordRejected, match=r"it is a record's version, or 0 for no record"):
        expect_version_header(value)


def test_a_delete_by_something_else_than_a_list_is_explained():
    """A number as keys is answered by the forms that a delete takes."""
    with pytest.raises(ConfigurationError, match="keys is 7; it is a list of SOW keys, or give key= for one"):
        check(Selection(None, typing.cast("list[str]", 7), None, None), has_sequence=False)


def test_a_header_that_is_no_text_is_named():
    """A number as a header, or as its name, is named with its value; it is no AttributeError about `encode`."""
    with pytest.raises(ConfigurationError, match=r"the value of header 'trace' is 1; it is a text or bytes"):
        named_headers(typing.cast("dict[str, str]", {"trace": 1}))
    with pytest.raises(ConfigurationError, match=r"the header name 1 is no text"):
        named_headers(typing.cast("dict[str, str]", {1: "x"}))


def test_a_filter_that_is_no_text_is_explained():
    """A number as filter is answered by an example of one."""
    with pytest.raises(FilterError, match=r'a filter is a text, such as "/qty > 10", and no int'):
        compile_filter(typing.cast("str", 7))


@pytest.mark.parametrize(
    ("text", "word"), [("/id descc", "descc"), ("/id, /px ASCE", "ASCE"), ("/px descending", "descending")]
)
def test_a_misspelt_direction_is_named(text: str, word: str):
    """A word behind an expression that looks like ASC or DESC is called a direction, with its place."""
    with pytest.raises(FilterError, match=f"there is no direction '{word}'; write ASC, DESC or nothing") as caught:
        SortOrder(text)
    assert caught.value.column == text.index(word) + 1


def test_settings_that_are_no_file_are_not_read_as_one(tmp_path: Path):
    """`load` of a mapping names the calls that take one."""
    with pytest.raises(ConfigurationError, match=r"load reads a file, and got a dict; .* Client\(name, settings\)"):
        load(typing.cast("str", {"topics": {}}))
    assert Client("x", {"topics": {"orders": {}}}).config.topics.keys() == {"orders"}


def test_an_unknown_field_of_an_avro_record_has_a_suggestion(tmp_path: Path):
    """A misspelt field is named with the closest field of the schema, and without an empty place in front."""
    schema = '{"type": "record", "name": "Trade", "fields": [{"name": "id", "type": "long"}, '
    schema += '{"name": "price", "type": "double", "default": 0}]}'
    (tmp_path / "trade.avsc").write_text(schema)
    topic = TopicConfig.model_validate({"message_type": "avro", "schema": str(tmp_path / "trade.avsc")})
    codec = load_codec("avro", codec_options(topic, name="trades"))
    with pytest.raises(TypeError, match=r"^record Trade has no field 'prise'; did you mean 'price'\?$"):
        codec.encode({"id": 1, "prise": 3.75})
