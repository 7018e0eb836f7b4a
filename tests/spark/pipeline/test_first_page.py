"""The pages of the pipeline: a reader's first page runs as it stands, and its tables agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from prometheus_client import CollectorRegistry, generate_latest

from processor.config import load
from processor.kafka.admin.admin import Admin
from processor.trial.broker.server import free_port
from spark_integration.cli import run_command
from spark_integration.cli.init import FILES, PIPELINE
from spark_integration.pipeline.job import JobSettings, find_job
from spark_integration.pipeline.monitor import Monitor
from spark_integration.pipeline.pipeline_settings import PipelineFile
from tests.cli.conftest import Cli
from tests.docs.pages import blocks
from tests.spark.pipeline.test_killed import SPARK
from tests.spark.upserting_job import SESSIONS
from tests.trial.conftest import Up

PATIENCE_S = 900
"""Longest wait for any one event, on a machine that has other work."""
PAGE = "../../spark_integration/README.md"
JOBS = "../../spark_integration/pipeline/README.md"


def _blocks(language):
    return [part.text for part in blocks(PAGE) if part.section == "The pipeline on Spark" and part.language == language]


def test_init_writes_files_once(tmp_path, capsys) -> None:
    """The files are those of the page, and a second call changes nothing."""
    assert run_command(["init", str(tmp_path / "shop")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "shop" / name) for name in FILES]
    assert _blocks("yaml") == [f"# shop/pipeline.yaml\n{PIPELINE}"]
    (tmp_path / "shop/pipeline.yaml").write_text("mine")
    (tmp_path / "shop/sowstream.yaml").unlink()
    assert run_command(["init", str(tmp_path / "shop")]) == 2
    assert "exists already: nothing is written" in capsys.readouterr().err
    assert (tmp_path / "shop/pipeline.yaml").read_text() == "mine"
    assert not (tmp_path / "shop/sowstream.yaml").exists()


@pytest.mark.parametrize(("name", "prefix"), [("Börse & Co", "b-rse-co."), ("2026", "2026."), ("…", "shop.")])
def test_topics_of_init_have_the_directory_in_their_names(name, prefix, tmp_path) -> None:
    """Two pipelines on one Kafka do not share topics, and any name of a directory gives a prefix."""
    assert run_command(["init", str(tmp_path / name)]) == 0
    assert load(tmp_path / name / "sowstream.yaml").topic_prefix == prefix


def test_the_first_page_is_short() -> None:
    """From the title to the result there are at most 60 lines."""
    text = (Path(__file__).parents[3] / "spark_integration/README.md").read_text()
    assert text.index('{"item":"tea","qty":8}') < len("".join(text.splitlines(keepends=True)[:60]))


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_first_page_leads_to_its_result(bootstrap, unique, tmp_path) -> None:
    """Each command of the page has the output that stands below it, with a broker and topics of the test."""

    def adapted(text: str) -> str:
        text = re.sub(r"\b(orders|depth)\b(?!\.json)", lambda name: f"{unique}_{name[1]}", text)
        return text.replace("localhost:9092", bootstrap)

    def shell(script: str) -> str:
        for name, program in (("sowstream-spark", [sys.executable, "-m", "spark_integration.cli"]),
                              ("sowstream", Cli.command())):  # fmt: skip
            script = re.sub(rf"(?m)^{name} ", f"{' '.join(program)} ", adapted(script))
        return subprocess.run(
            ["bash", "-ec", script], cwd=shop, check=True, timeout=PATIENCE_S, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ).stdout  # fmt: skip

    shop = tmp_path / "shop"
    assert run_command(["init", str(shop)]) == 0
    for name in ("pipeline.yaml", "sowstream.yaml"):
        (shop / name).write_text(adapted((shop / name).read_text()))
    tree = yaml.safe_load((shop / "sowstream.yaml").read_text())
    assert tree["topic_prefix"] == "shop.", "a Kafka that has other `orders` is no obstacle"
    tree |= {"application_id": unique, "topic_prefix": f"{unique}.", "gateway": {"listen": f"127.0.0.1:{free_port()}"}}
    (shop / "sowstream.yaml").write_text(yaml.safe_dump(tree))
    pipeline = yaml.safe_load((shop / "pipeline.yaml").read_text())
    (shop / "pipeline.yaml").write_text(yaml.safe_dump(pipeline | {"spark": SPARK}))
    check, result, more = _blocks("sh")
    with Up(shop, on_terminal=True) as up:
        up.until("Ready in ")
        threading.Thread(target=up.end, daemon=True).start()  # A terminal is read to its end.
        assert shell(check) == _blocks("")[1]
        log = tmp_path / "run.log"
        with log.open("wb") as errors:
            run = subprocess.Popen(
                [sys.executable, "-m", "spark_integration.cli", "run"], cwd=shop, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

        def await_result(reached: Callable[[str], bool]) -> None:
            deadline_s = time.monotonic() + PATIENCE_S
            while not reached(shown := shell(result)):
                in_time = run.poll() is None and time.monotonic() < deadline_s
                assert in_time, f"{shown}\n{log.read_text()}\n{shell('sowstream-spark status || true')}\n{up.output}"
                time.sleep(0.5)  # Between two looks; the fact decides.

        try:
            await_result(_blocks("json")[0].__eq__)
            shell(more)
            await_result(lambda shown: '"qty":9' in shown)
        finally:
            run.terminate()
            run.wait(PATIENCE_S)
        assert run.returncode == 0, log.read_text()
        lines = log.read_text().splitlines()
        assert all(line.startswith("{") for line in lines), "a JSON line for each event, and no trace"
    admin = Admin(tree["kafka"])
    admin.delete([name for name in admin.cluster().topics if name.startswith(f"{unique}.")])


README = (Path(__file__).parents[3] / "spark_integration/pipeline/README.md").read_text()


def _documented(head: str) -> list[str]:
    table = README.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)


def _keys(model) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_every_setting_is_documented() -> None:
    """The tables of the README have the settings of the file and of each built-in job, and no others."""
    assert {*_documented("setting")} == _keys(PipelineFile)
    shared = {*_documented("setting of every job")}
    assert shared == _keys(JobSettings)
    for kind in ("ingest", "archive", "table", "features"):
        named = {name.partition(".")[0] for name in _documented(f"setting of `{kind}`")}
        assert named == _keys(find_job(kind).settings_type) - shared, kind


def test_the_sessions_of_lakes_are_those_that_are_tried() -> None:
    """The settings of the page for Delta Lake and Iceberg are those under which the tests write such tables."""
    shown = [yaml.safe_load(part.text)["spark"] for part in blocks(JOBS) if part.section == "Delta Lake and Iceberg"]
    assert [*map(tuple, shown)] == [(*SESSIONS["delta"],), (*SESSIONS["iceberg"], "spark.sql.catalog.lake.warehouse")]
    assert all(SESSIONS[kind].items() <= tree.items() for kind, tree in zip(("delta", "iceberg"), shown, strict=True))


def test_every_metric_is_documented() -> None:
    """The table of metrics has each metric of a job with its labels."""
    registry = CollectorRegistry()
    Monitor(registry)
    text = generate_latest(registry).decode()
    known = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    documented = set(re.findall(r"^\| `(sowstream_spark_\w+)\{", README, re.MULTILINE))
    assert documented == {name for name in known if not name.endswith("_created")}
