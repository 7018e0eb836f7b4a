"""The commands of the deployment's pages exist: of its READMEs, its runbook and its drills."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml

from processor.cli.main import command_line
from processor.topics.family import Role
from tests.deploy.test_monitoring import rules
from tests.programs.drills.drills import DRILLS

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sowstream"


def accepted(words: list[str], program: typer.Typer | None = None) -> dict[str, Any]:
    """The parameters that the command line parses from these words, without running the command."""
    command: Any = typer.main.get_command(program or command_line())
    rest = list(words)
    while rest and hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context(words[0], rest).params


def compose_commands() -> list[list[str]]:
    """The commands of the compose file's services whose program is `sowstream`."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return [service["command"] for name, service in services.items() if "command" in service and name != "pipeline"]


@pytest.mark.parametrize("words", compose_commands(), ids=" ".join)
def test_compose_command_is_accepted(words: list[str]) -> None:
    """A compose command parses and reads the mounted settings file."""
    assert accepted(words)["config"] == Path("/etc/sowstream/sowstream.yaml")


def test_the_pipelines_compose_command_is_accepted() -> None:
    """The command of the pipeline parses as one of `sowstream-spark`, and reads the mounted file."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
    from spark_integration.cli import app as pipeline_app

    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["pipeline"]
    assert service["command"][0] == "run"
    assert accepted(service["command"], pipeline_app)["config"] == Path("/etc/sowstream/pipeline.yaml")


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_chart_commands_are_accepted() -> None:
    """The chart's commands parse, name the topics of the values, and read the mounted settings file."""
    command = [
        "helm",
        "template",
        "desk",
        str(CHART),
        "--kube-version",
        "1.31.0",
        "-f",
        str(CHART / "ci/full-values.yaml"),
    ]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True).stdout
    manifests = [manifest for manifest in yaml.safe_load_all(rendered) if manifest is not None]
    pods = [
        m["spec"].get("template", m)["spec"]
        for m in manifests
        if m["kind"] in {"StatefulSet", "Deployment", "Job", "Pod"}
    ]
    lines = {tuple(container["args"]) for pod in pods for container in pod["containers"]}
    assert {line[0] for line in lines} == {"worker", "conflate", "view", "gateway", "topics"}
    for line in lines:
        assert accepted(list(line))["config"] == Path("/etc/sowstream/sowstream.yaml")


def test_the_monitoring_expressions_name_existing_metrics() -> None:
    """The monitoring expressions of the README name metrics, gauges, timings and events that a worker has."""
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    expressions = text.split("### What to watch of conflated topics")[1].split("###")[0]
    listed = (ROOT / "processor" / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    metrics = {name.removesuffix("_bucket") for name in re.findall(r"sowstream_\w+", expressions)}
    assert len(metrics) == 4
    for name in re.findall(r'event="(\w+)"', expressions):
        assert f"`{name}`" in listed, name
    assert all(f"`{metric}{{" in listed for metric in metrics)


def test_the_table_of_rights_has_every_role() -> None:
    """The README's table of rights has each role of a topic family, and no other."""
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `orders\.(\w+)` \|", text, re.MULTILINE)) == set(get_args(Role))


RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
RUNBOOK_VALUES = {"TOPIC": "orders", "VIEW": "totals", "P": "3", "OFFSET": "42", "FILE": "sowstream.yaml"}
"""The values of the runbook's placeholders."""


def entries() -> dict[str, str]:
    """The text of each alert's entry, by the alert."""
    parts = re.split(r"^### (Sowstream\w+)\n", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.split("\n## ")[0] for text in parts[2::2]), strict=True))


def runbook_commands() -> list[str]:
    """Every command line of the runbook."""
    inline = re.findall(r"`(sowstream [^`]+)`", RUNBOOK)
    in_pods = re.findall(r"^kubectl exec .* -- (sowstream .+)$", RUNBOOK, re.MULTILINE)
    return sorted({*inline, *in_pods})


def test_every_alert_has_one_entry_and_every_entry_an_alert() -> None:
    """Alerts and entries have the same names, in which no entry is there twice."""
    alerts = [rule["alert"] for rule in rules()]
    assert len(alerts) == len(set(alerts))
    assert sorted(re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)) == sorted(alerts)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_entry(rule: dict[str, object]) -> None:
    """The address in an alert is that of its heading, and the entry says where to look and what to do."""
    alert = str(rule["alert"])
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    assert annotations["runbook_url"] == f"deploy/RUNBOOK.md#{alert.lower()}"
    assert annotations["summary"]
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    entry = entries()[alert]
    assert [mark for mark in ("- **Look:** ", "- **Do:** ") if entry.count(mark) != 1] == []


@pytest.mark.parametrize("command", runbook_commands())
def test_a_command_of_the_runbook_is_accepted(command: str) -> None:
    """A command that someone copies at night parses, with a value for each placeholder."""
    words = [RUNBOOK_VALUES.get(word, word) for word in command.split()[1:]]
    assert accepted(words) is not None


def test_links_within_the_runbook_lead_to_headings() -> None:
    """A link to another entry has the address that GitHub gives its heading."""
    headings = {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= headings


PAGE = (Path(__file__).parents[2] / "deploy" / "DRILLS.md").read_text(encoding="utf-8")
VALUES = {"OFFSET": "42"}
"""The values of the page's placeholders."""


def commands() -> list[str]:
    """Every command line of the page, without its comment."""
    lines = re.findall(r"^(sowstream [^#\n]+)", PAGE, re.MULTILINE)
    return sorted({line.strip() for line in [*lines, *re.findall(r"`(sowstream [^`]+)`", PAGE)]})


def test_each_drill_has_a_row() -> None:
    """The table has each drill of `make program NAME=drills` once, and no other."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(DRILLS)


def test_each_drill_has_a_page() -> None:
    """There are as many pages as drills; each has a place to look, and commands or the advice to do nothing."""
    pages = PAGE.split("\n## ")[1:]
    assert len(pages) == len(DRILLS)
    assert [page.splitlines()[0] for page in pages if "**Look:**" not in page] == []
    assert [page.splitlines()[0] for page in pages if "```" not in page and "**Do:**" not in page] == []


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_is_accepted(command: str) -> None:
    """A command of a drill parses, with a value for each placeholder."""
    assert accepted([VALUES.get(word, word) for word in command.split()[1:]]) is not None
