"""Every command line in the compose file and the chart is accepted by `sowstream`."""

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
