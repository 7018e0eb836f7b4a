"""`sowstream check` finds without Kafka the mistakes that a worker would find at its start."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path

import jsonschema
import pytest
import yaml

from processor.cli.main import run
from processor.codec.contract import GROUP, OPTIONS_TAKEN
from processor.config import Config, load
from processor.config.json_schema import schema
from processor.errors import ConfigurationError
from processor.installation.settings_check import check_offline
from tests.builtin.installed import install


def problems(text: str, tmp_path: Path) -> dict[str, str]:
    """The problems of a settings file, by topic."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(text)
    return dict(check_offline(load(file)).problems)


@pytest.mark.parametrize(
    ("section", "topic", "problem"),
    [
        ("topics: {o: {merge_rules: {/a: summ}}}", "o", "did you mean 'sum'"),
        ("topics: {o: {preprocess: [upperr]}}", "o", "preprocessor 'upperr'"),
        ("topics: {o: {}}\nconflated: {c: {underlying: o, filter: '/qty >'}}", "c", "the filter ends"),
        ("topics: {o: {message_type: jsonn}}", "o", "did you mean 'json'"),
        ("topics: {o: {message_type: avro, schema: nowhere.avsc}}", "o", "nowhere.avsc"),
        ("topics: {o: {schema: nowhere.json}}", "o", "schema is for message_type avro, json-schema, protobuf, and"),
        ("topics: {o: {message_type: xml, separator: '|'}}", "o", "separator is for message_type fix, nvfix, and"),
        ("topics: {o: {message_type: fix, parts: [json]}}", "o", "parts is for message_type composite-global, "),
        ("topics: {o: {message_type: composite-local, parts: [json], separator: '|'}}", "o", "separator is for"),
        ("topics: {o: {sow: false, schema: nowhere.json}}", "o", "schema is for"),
        ("processors: {p: {use: nowhere}}", "p", "there is no processor 'nowhere'"),
        ("topics: {o: {}}\nqueues: {q: {underlying: o, filter: '/qty >'}}", "q", "the filter ends"),
        ("topics: {o: {}}\nqueues: {q: {underlying: o, filter: 'UNIX_TIMESTAMP() > 1'}}", "q", "with the clock"),
        (
            "topics: {o: {message_type: binary, key: explicit}}\nqueues: {q: {underlying: o, filter: /x}}",
            "q",
            "no fields",
        ),
    ],
)
def test_a_mistake_is_found_with_its_topic(tmp_path: Path, section: str, topic: str, problem: str) -> None:
    """Unknown rules, plug-ins and message types, bad filters and missing schema files are problems of their topic."""
    found = problems(section, tmp_path)
    assert problem in found.get(topic, ""), found


def test_settings_of_a_message_type_pass(tmp_path: Path) -> None:
    """A composite has the settings of its parts, and a message type of a plug-in may read any."""
    install(tmp_path / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        piped = "{message_type: composite-local, parts: [json, fix], separator: '|', key: [/0/id]}"
        section = f"topics: {{a: {piped}, b: {{message_type: labelled, schema: x.y, separator: '|', parts: [z]}}}}"
        assert problems(section, tmp_path) == {}


def test_every_message_type_of_the_product_names_its_settings() -> None:
    """A message type without a row would pass with settings that it does not read."""
    ours = {point.name for point in entry_points(group=GROUP) if point.value.startswith("processor.")}
    assert ours == OPTIONS_TAKEN.keys()


OVER_ORDERS = "topics: {orders: {key: [/id]}, people: {key: [/id]}}\nconflated: {slow: {underlying: a}}\nviews:\n  "
OF_GROUPS = "a: {underlying: orders, group_by: [/c], fields: {/n: COUNT(*)}}\n  "


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (
            "v: {underlying: a, fields: {/m: '/n + /nn'}}",
            "line 1, column 6: the rows of 'a' have no field /nn;",
        ),
        ("v: {underlying: slow, filter: '/q = 1', fields: {/m: /n}}", "filter, line 1, column 1: the rows of 'slow'"),
        (
            "v: {underlying: a, group_by: [/d], fields: {/m: SUM(/n)}}",
            "views.v.group_by: the rows of 'a'",
        ),
        (
            "v: {underlying: orders, join: [{topic: a, on: {/c: /x}}], fields: {/m: /id}}",
            "views.v.join.on: the rows",
        ),
        ("v: {underlying: orders, join: [{topic: a, on: {/c: /c}}], fields: {/m: '[a]./q'}}", "there are /c, /n"),
        (
            "v: {underlying: orders, group_by: [/c], fields: {/m: MAX(/x)}, having: '/n > 1'}",
            "its rows have no field",
        ),
        ("v: {underlying: orders, group_by: [/c], fields: {/m: SUMM(/x)}}", "there is no function SUMM; the aggregate"),
        ("v: {underlying: orders, group_by: [/c], fields: {/m: SUM(/x}}", "expression, line 1, column 7: expected )"),
        ("v: {underlying: orders, fields: {/m: '[people]./x'}}", "expression, line 1, column 1: no topic 'people'"),
    ],
)
def test_a_mistake_in_a_view_is_found_once_with_its_place(tmp_path: Path, view: str, problem: str) -> None:
    """A field that no input has, or an unknown function, is one problem of the view, which has several stages."""
    (tmp_path / "s.yaml").write_text(OVER_ORDERS + OF_GROUPS + view)
    report = check_offline(load(tmp_path / "s.yaml"))
    assert [topic for topic, _ in report.problems] == ["v"]
    assert problem in report.problems[0][1]
    assert {"a", "v"} <= set(report.topics)


def test_a_view_over_records_with_a_schema_names_fields_of_the_schema(tmp_path: Path) -> None:
    """A field that the Avro schema of the underlying does not have is refused, and one that it has is not."""
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    (tmp_path / "order.avsc").write_text(json.dumps(schema))
    text = f"topics: {{orders: {{key: [/id], message_type: avro, schema: {tmp_path}/order.avsc}}}}\nviews:\n  v: "
    wrong = problems(text + "{underlying: orders, fields: {/id: /id, /x: UPPER(/idd)}}", tmp_path)
    assert "column 7: the schema of 'orders' has no field /idd" in wrong["v"]
    assert problems(text + "{underlying: orders, fields: {/id: /id}}", tmp_path) == {}


@pytest.mark.parametrize("schema", ["", ", schema: {subject: o.publish-value}"])
def test_a_schema_of_a_registry_is_not_fetched(tmp_path: Path, schema: str) -> None:
    """A topic whose schema a registry has is reported as unchecked, named or not, and the registry gets no request."""
    text = f"schema_registry: {{url: 'http://127.0.0.1:1'}}\ntopics: {{o: {{message_type: avro{schema}}}}}"
    (tmp_path / "s.yaml").write_text(text)
    report = check_offline(load(tmp_path / "s.yaml"))
    assert report.unchecked == [("o", "the schema registry has subject o.publish-value; `sowstream doctor` checks it")]
    assert report.problems == []


def test_each_topic_is_checked_although_another_is_wrong(tmp_path: Path) -> None:
    """A file with several mistakes has all of them reported at once."""
    text = "topics: {a: {merge_rules: {/x: summ}}, b: {preprocess: [upperr]}, c: {}}\nprocessors: {p: {use: none}}"
    assert set(problems(text, tmp_path)) == {"a", "b", "p"}


def test_a_good_file_has_no_problems_and_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 0 for a good file, with 2 for a bad one, and prints a JSON object for each problem."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("topics: {o: {}}\nconflated: {c: {underlying: o}}\n")
    bad.write_text("topics: {o: {merge_rules: {/a: summ}}}\n")
    assert run(["check", str(good)]) == 0
    assert "2 topics can be used." in capsys.readouterr().err
    assert run(["check", str(bad), "--json"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["topic"] == "o"


def test_a_missing_file_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a settings file, the error names the file that was looked for."""
    monkeypatch.chdir(tmp_path)
    assert run(["check"]) == 2
    assert "sowstream.yaml: No such file" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match=r"no topic 'orders': there is no settings file .*sowstream\.yaml"):
        load().topic("orders")


def test_the_topic_of_a_processor_with_an_underlying_is_an_error() -> None:
    """A processor that reads another topic keeps that topic's key: a key of its own would be ignored."""
    with pytest.raises(ValueError, match="its records have the settings of its underlying 'o'"):
        Config(topics={"o": {}}, processors={"p": {"use": "x", "underlying": "o", "topic": {"key": ["/c"]}}})


def test_a_key_without_a_slash_is_corrected() -> None:
    """A key field that is no path is quoted with the path that was meant."""
    with pytest.raises(ValueError, match="'id' is no path; write /id"):
        Config(topics={"o": {"key": ["id"]}})


class TestSchema:
    """The JSON Schema of the settings accepts the files that `load` accepts, and finds misspelt settings."""

    @pytest.mark.parametrize(
        "text",
        [
            "kafka: {bootstrap.servers: 'a:1', socket.keepalive.enable: true}\ntopics: {o: {}}",
            "topics: {o: {key: explicit, expiration: 1h, preprocess: [a, {use: b, settings: {x: 1}}]}}",
            "topics: {o: {schema: orders.avsc}, p: {schema: {subject: x}}}",
            "topics: {o: {}}\nconflated: {c: {underlying: o, interval: 500ms}, d: {underlying: o, interval: auto}}",
            "connect_timeout_s: 2s\nruntime: {commit_interval_s: 50ms, metrics_port: 9000}",
        ],
    )
    def test_files_that_are_read_are_valid(self, text: str) -> None:
        """Intervals, bare names and properties may be written in each of their forms."""
        tree = yaml.safe_load(text)
        Config(**tree)
        jsonschema.validate(tree, schema())

    @pytest.mark.parametrize("text", ["topicz: {}", "topics: {o: {ky: [/id]}}", "guarantee: twice"])
    def test_mistakes_are_invalid(self, text: str) -> None:
        """Unknown settings and unknown words are marked."""
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(text), schema())

    def test_settings_have_descriptions(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The command prints the schema, with the meaning of each setting for the editor."""
        assert run(["check", "--schema"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert "First part of consumer groups" in printed["properties"]["application_id"]["description"]
