"""The status of the installation for operators, and the metrics: code, reference page and Grafana board agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from processor.errors import ConfigurationError
from processor.gateway import endpoints
from processor.gateway.access.entitlements import Entitlements
from processor.installation.pipeline_status import Status, StatusReport, status_report
from processor.merge import KeyFields
from tests.gateway.memory import RIGHTS, Guarded, MemoryWorld
from tests.waiting import until

OPERATORS = {"users": ["ann"], "roles": ["desk"]}


@pytest.fixture
def asked(monkeypatch):
    """The calls for the status, which needs no Kafka here."""
    calls = []

    def report(config, topics=()):
        calls.append(topics)
        return StatusReport("trial", Status([], has_control=True), {})

    monkeypatch.setattr(endpoints, "status_report", report)
    return calls


def answer(world, token, path="status"):
    """The status code and the body of a request for the status."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    code, _, body = world.gateway.get(f"/v1/{path}", headers)
    return code, body


def test_the_status_is_for_operators_alone(guarded, asked):
    """Only users and roles that the file lists are operators, as long as it lists them."""

    def codes(*tokens):
        return [answer(guarded.world, token)[0] for token in tokens]

    def is_operator(token):
        return json.loads(answer(guarded.world, token, "topics")[1]).get("operator", False)

    assert codes(None, "wrong", "t-ann", "t-bob", "t-eve") == [401, 401, 403, 403, 403]
    assert asked == []
    guarded.write(guarded.rights, RIGHTS | {"operators": OPERATORS})
    until(lambda: codes("t-ann") == [200])
    assert codes("t-bob", "t-eve") == [200, 403]
    guarded.write(guarded.rights, RIGHTS | {"operators": {"users": ["bob"]}})
    until(lambda: codes("t-ann") == [403])
    assert codes("t-bob") == [200]
    assert [is_operator(token) for token in ("t-ann", "t-bob", "t-eve")] == [False, True, False]


def test_one_answer_of_kafka_is_for_all_who_ask(memory_world, asked, monkeypatch):
    """Without tokens all clients may see the status; Kafka is asked again when its answer is old."""
    monkeypatch.setattr(endpoints, "_STATUS_S", 1e9)
    assert [answer(memory_world, None)[0] for _ in range(20)] == [200] * 20
    assert len(asked) == 1
    monkeypatch.setattr(endpoints, "_STATUS_S", -1.0)
    assert json.loads(answer(memory_world, None)[1])["application_id"] == "trial"
    assert len(asked) == 2


def test_a_misspelt_list_of_operators_is_refused(tmp_path):
    """A key that the section does not have is a mistake with its place."""
    path = tmp_path / "entitlements.yaml"
    Guarded.write(path, {"operators": {"user": ["ann"]}})
    with pytest.raises(ConfigurationError, match=r"operators\.user"):
        Entitlements(path, lambda topic: KeyFields(("/id",)), ("orders",))


@pytest.mark.broker
def test_the_gateway_gives_the_status_that_the_command_prints(kafka_world, start):
    """The answer is the report of `sowstream status --json`, with the sentences below its table."""
    code, _, body = start().get("/v1/status")
    status = json.loads(body)
    report = status_report(kafka_world.config)
    assert code == 200
    assert status == {**report.as_json(), "notes": report.notes({})}
    assert {one["name"] for one in status["pipelines"]} >= {kafka_world.name}
    assert any("no worker" in note for note in status["notes"])


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "processor" / "docs" / "reference" / "gateway.md"
BOARD = ROOT / "deploy" / "grafana" / "gateway.json"


@pytest.fixture(scope="module")
def served():
    """The names of the metrics that a gateway serves, with their labels."""
    world = MemoryWorld()
    world.put("a", qty=1)
    text = world.gateway.get("/metrics")[2].decode()
    world.close()
    names = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(sowstream_gateway_\w+?)(?:\{(.*)\})? \S+", line)
        if match is not None and not match[1].endswith("_created"):
            labels = set(re.findall(r'(\w+)="', match[2] or ""))
            names[match[1]] = names.get(match[1], set()) | labels
    return names


def test_the_table_lists_the_metrics_of_the_code(served):
    """The table has each metric with its labels, and no other one."""
    section = PAGE.read_text().partition("## Metrics")[2]
    listed = {}
    for cell in re.findall(r"^\| (`sowstream.*?) \|", section, re.MULTILINE):
        for name, labels in re.findall(r"`(\w+)(?:\{(\w+)\})?`", cell):
            listed[name] = {labels} if labels else set()
    assert listed == served


def test_the_board_draws_metrics_that_exist(served):
    """Each expression of the Grafana board is about metrics of the gateway, and each metric is drawn."""
    board = json.loads(BOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    drawn = {name for text in expressions for name in re.findall(r"sowstream_gateway_\w+", text)}
    assert drawn == set(served)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
