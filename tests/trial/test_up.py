"""`sowstream up`: its refusals, and that nothing is left of it after a bad end.

Its good ends, by Ctrl-C and SIGTERM, are in `tests/docs/test_tutorial_page.py`.
"""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from processor import trial
from processor.config import Config
from processor.trial.up.readiness import Readiness
from processor.trial.up.report import Report
from processor.trial.up.run import UpOptions, _Up
from tests.forked import run
from tests.programs.faults.broker.ports import quiet_port
from tests.trial.conftest import Up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY = "Ready in "


@pytest.fixture
def folder(tmp_path: Path, bootstrap: str, unique: str) -> Path:
    """A folder with settings for a topic of the test."""
    return with_settings(tmp_path, bootstrap, unique)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def with_settings(folder: Path, bootstrap: str, name: str, **more: Any) -> Path:
    """Write a settings file with one topic into a folder."""
    tree = {
        "application_id": name,
        "kafka": {"bootstrap.servers": bootstrap},
        "topics": {name: {"partitions": 2}},
        "gateway": {"listen": f"127.0.0.1:{quiet_port()}"},
    }
    (folder / "sowstream.yaml").write_text(yaml.safe_dump(tree | more))
    return folder


@pytest.mark.broker
def test_a_program_that_ends_is_reported_and_ends_the_others(
    tmp_path: Path, bootstrap: str, unique: str, taken_port: int
) -> None:
    """A worker that cannot start ends it all: the error has its reason, and no program is left."""
    with_settings(tmp_path, bootstrap, unique, runtime={"metrics_port": taken_port})
    with Up(tmp_path, "--no-gateway", on_terminal=True) as up:
        assert up.end() == 1
        assert f"the worker has ended with exit code 1: runtime.metrics_port {taken_port}" in up.output
        assert "Traceback" not in up.output
        assert up.left() == []


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.parametrize("end", ["terminal closed", "killed", "worker killed"])
def test_nothing_is_left_after_a_bad_end(folder: Path, end: str) -> None:
    """A closed terminal, `kill -9`, or a killed worker ends all programs."""
    with Up(folder, on_terminal=True) as up:
        up.until(READY)
        if end == "terminal closed":
            up.close_terminal()
        elif end == "killed":
            up.kill()
        else:
            [worker] = [
                one for one in up.programs if "worker" in one.cmdline() and "guard.py" not in str(one.cmdline())
            ]
            worker.kill()
        code = up.end()
        assert up.left() == []
        assert code == {"terminal closed": 0, "killed": -9, "worker killed": 1}[end]
        if end == "worker killed":
            assert "the worker has ended with exit code 137" in up.output


def test_refusals_name_the_remedy(tmp_path: Path, unique: str, taken_port: int) -> None:
    """A taken address, TLS and a broker that is there already are refused before anything starts."""
    nobody = f"127.0.0.1:{quiet_port()}"
    with_settings(tmp_path, nobody, unique, gateway={"listen": f"127.0.0.1:{taken_port}"})
    done = run("up", directory=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Another `sowstream up` may run there; choose another address with --listen HOST:PORT" in done.stderr
    with_settings(tmp_path, nobody, unique, kafka={"bootstrap.servers": nobody, "security.protocol": "SSL"})
    done = run("up", "--no-gateway", directory=tmp_path)
    assert done.returncode == 2
    assert "(kafka.security.protocol is SSL)" in done.stderr
    done = run("up", "--no-gateway", "--temporary", "--bootstrap", f"127.0.0.1:{taken_port}", directory=tmp_path)
    assert done.returncode == 2
    assert "--temporary needs a broker of its own" in done.stderr


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        ({}, "the settings name no topics"),
        ({"a": {"merge_rules": {"/n": "summ"}}}, "a: there is no merge rule 'summ'; did you mean 'sum'?"),
    ],
)
def test_settings_that_no_worker_takes_are_refused_before_a_broker_starts(
    tmp_path: Path, unique: str, topics: dict[str, Any], reason: str
) -> None:
    """No broker is fetched and no topic is created for them: the reason is all that is written."""
    with_settings(tmp_path, f"127.0.0.1:{quiet_port()}", unique, topics=topics)
    done = run("up", "--no-gateway", directory=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "afka" not in done.stderr


def test_a_view_is_ready_when_each_of_its_stages_is() -> None:
    """A topic is ready once its assigned partitions are restored, and a view once those of its stages are."""
    tree = {"topics": {"a": {}}, "views": {"v": {"underlying": "a", "group_by": ["/g"], "fields": {"/n": "COUNT(*)"}}}}
    readiness = Readiness(Config.model_validate(tree))

    def restored(topic: str, partition: int) -> list[tuple[str, int]]:
        return [*readiness.take({"event": "restored", "topic": topic, "partition": partition})]

    for topic in ("a.publish", "a.sow", "v.parts"):
        assert readiness.take({"event": "assigned", "topic": topic, "partitions": [0, 1]}) == []
    assert [restored("a.sow", 0), restored("a.sow", 1)] == [[], [("a", 2)]]
    assert [restored("v.split.sow", 0), restored("v.split.sow", 1)] == [[], []]
    readiness.take({"event": "let go", "topic": "v.parts", "partitions": [1]})
    assert not readiness.is_complete
    assert restored("v.sow", 0) == [("v", 1)]
    assert readiness.is_complete


@pytest.mark.parametrize("has_grid", [True, False])
def test_a_page_without_its_grid_is_announced_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_grid: bool
) -> None:
    """The line of the page is followed by the command that fetches the grid, if the grid is not installed."""
    library = tmp_path / "web/adapters/node_modules/ag-grid-community/dist/ag-grid-community.min.noStyle.js"
    if has_grid:
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.setattr(trial, "ADAPTERS", tmp_path / "web/adapters")
    monkeypatch.chdir(tmp_path)
    report = Report(is_verbose=False)
    report.is_terminal = True
    up = _Up(Config.model_validate({"topics": {"a": {}}}), UpOptions(broker_dir=tmp_path, heap="1g"), report)
    up._take_gateway_line('{"event": "the gateway listens", "address": "http://127.0.0.1:1"}')
    page, *more = capsys.readouterr().err.splitlines()
    assert page == "Page: http://127.0.0.1:1/"
    remedy = "run npm ci --prefix web/adapters, then load the page again."
    assert [line.partition(": ")[2] for line in more] == ([] if has_grid else [remedy])


def test_a_program_that_could_not_be_started_does_not_keep_the_others_from_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a program cannot be started, those that run are ended in good order, and its error stays the reason."""
    report = Report(is_verbose=False)
    up = _Up(Config.model_validate({"topics": {"a": {}}}), UpOptions(broker_dir=tmp_path, heap="1g"), report)
    up._start("worker", ["--help"], lambda _line: None)

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(BlockingIOError):
        up._start("gateway", [], lambda _line: None)
    up._stop()
    assert [program.exit_code is not None for program in up._programs] == [True, False]


def test_the_library_of_the_grid_is_the_one_that_the_page_loads() -> None:
    """The file that is looked for is the one in the page's own source, and npm's lock has its package."""
    assert f'src="adapters/{trial.GRID}"' in (trial.ADAPTERS.parent / "index.html").read_text()
    assert '"node_modules/ag-grid-community"' in (trial.ADAPTERS / "package-lock.json").read_text()
