"""The gateway's metrics: the table of the reference page, the Grafana board and the code name the same ones."""

import json
import re
from pathlib import Path

import pytest

from tests.gateway.memory import MemoryWorld

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
