"""The setup of a worker process: its allocator, its memory, and its log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from processor.config import Config, RuntimeConfig
from processor.runtime.worker import assembly, os_process
from processor.runtime.worker.assembly import Assembly
from processor.runtime.worker.worker_identity import ProcessSlot

SAY = [sys.executable, "-c", "from processor.runtime.worker import os_process; print(os_process.in_use())"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "jemalloc"),
        ("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libtcmalloc_minimal.so.4.5.10", "tcmalloc"),
        ("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libmimalloc.so.2.0", "mimalloc"),
        ("7f00-7f01 r-xp 0 fe:00 1 /home/jemalloc/libc.so.6", "libc"),
    ],
)
def test_the_allocator_is_detected_from_the_loaded_libraries(tmp_path: Path, line: str, name: str) -> None:
    """Only the file name of a library counts, not the name of its directory."""
    maps = tmp_path / "maps"
    maps.write_text(f"7e00-7e01 r-xp 0 fe:00 1 /usr/bin/python\n{line}\n")
    assert os_process.in_use(maps) == name


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_large_blocks_that_are_freed_go_back_to_the_system() -> None:
    """Freed blocks return to the system also between small blocks that stay; by default next to none do."""
    program = (
        "import sys; from processor.runtime.worker import os_process\n"
        "assert os_process.return_large_blocks() or sys.argv[1] == 'no'\n"
        "lines = lambda: open('/proc/self/status')\n"
        "held = lambda: next(int(line.split()[1]) for line in lines() if 'VmRSS' in line) // 1024\n"
        "kept, before = [], held()\n"
        "for _ in range(20):\n"
        "    blocks = []\n"
        "    for _ in range(100):\n"
        "        blocks.append(b'x' * 900_000)\n"
        "        kept.append(b'y' * 3_000)\n"
        "    del blocks\n"
        "print(held() - before)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-c", program, "yes"], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40, done.stdout


def test_the_allocator_is_libc_without_a_list_of_libraries(tmp_path: Path) -> None:
    """Systems other than Linux have no list of loaded libraries."""
    assert os_process.in_use(tmp_path / "none") == "libc"


@pytest.mark.skipif(find_library("jemalloc") is None, reason="jemalloc is not installed")
def test_a_program_with_the_environment_has_jemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader loads the library that `environment` has found."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    done = subprocess.run(
        SAY, env={**os.environ, **os_process.environment()}, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("jemalloc", "")
    assert os_process.of_programs() == "jemalloc"


def test_an_ld_preload_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """`environment` adds no variable if the user has set `LD_PRELOAD`."""
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libmine.so")
    monkeypatch.setattr(os_process, "find_library", lambda _: "libjemalloc.so.2")
    assert os_process.environment() == {}
    monkeypatch.delenv("LD_PRELOAD")
    assert os_process.environment() == {"LD_PRELOAD": "libjemalloc.so.2"}


def test_a_machine_without_jemalloc_uses_its_own_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jemalloc `environment` is empty, and the reported allocator is the one in use."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(os_process, "find_library", lambda _: None)
    assert os_process.environment() == {}
    assert os_process.of_programs() == os_process.in_use()


MIB = 1024 * 1024


def test_the_pipelines_of_a_process_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three gets a third, for its input and for its state: many topics take no more than a single one."""
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(assembly, "GroupConsumer", lambda *_, **settings: opened.append(settings))
    monkeypatch.setattr(assembly, "StateDirectory", lambda *given: SimpleNamespace(open=given[2]))
    runtime = {"prefetch_bytes": 48 * MIB, "write_back_bytes": 96 * MIB}
    config = Config.model_validate({"runtime": runtime, "state_dir": str(tmp_path)})
    slot = ProcessSlot(tmp_path)
    made = Assembly(config, slot, consumers=3)
    pipeline = SimpleNamespace(has_state=False, has_table=False, source="orders.publish", names=(), name="orders")
    monkeypatch.setattr(assembly, "_rebuild_steps", lambda _: "")
    made._consumer(cast("Any", pipeline), "group", cast("Any", None), cast("Any", None))
    pipeline.has_state = True
    limits = cast("RuntimeConfig", made._open_state(cast("Any", pipeline), cast("Any", None)))
    slot.release()
    assert [settings["prefetch_bytes"] for settings in opened] == [16 * MIB]
    assert limits.write_back_bytes == 32 * MIB


CODE = """
import logging, structlog
from processor.runtime.worker.logging_setup import set_up_logging
set_up_logging({arguments})
log = structlog.stdlib.get_logger("sowstream.worker")
log.info("settings", kafka={{"sasl.password": "hunter2", "bootstrap.servers": "here:9092"}}, token="hunter2")
log.debug("details")
logging.getLogger("sowstream.librdkafka").warning("broker %s is down", 7)
logging.getLogger("somebody.else").info("chatter")
try:
    record = "a record's data"
    1 / 0
except ZeroDivisionError:
    log.exception("oops")
"""


def logged(arguments: str = "") -> list[dict[str, object]]:
    """Return the log lines of a process without a terminal."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_every_line_is_json_off_a_terminal():
    """Lines of all loggers, errors included, are one JSON object each on stderr."""
    settings, broker, oops = logged()
    assert settings["event"] == "settings"
    assert (broker["event"], broker["level"], broker["logger"]) == (
        "broker 7 is down",
        "warning",
        "sowstream.librdkafka",
    )
    assert "ZeroDivisionError" in json.dumps(oops)
    assert str(oops["timestamp"]).endswith("Z")


def test_a_traceback_has_no_values_of_variables():
    """The variables of a failing function hold records and passwords, so the trace of an error leaves them out."""
    *_, oops = logged()
    assert "record's data" not in json.dumps(oops)


def test_secrets_are_stars():
    """Values of secret settings are replaced by stars, also inside a section."""
    (settings, *_) = logged()
    assert settings["kafka"] == {"sasl.password": "****", "bootstrap.servers": "here:9092"}
    assert settings["token"] == "****"


def test_verbose_adds_our_details_only():
    """`verbose` adds Sowstream's debug lines, not those of other libraries."""
    assert [line["event"] for line in logged("verbose=True")] == ["settings", "details", "broker 7 is down", "oops"]


def test_a_crash_in_a_library_writes_the_stacks_of_all_threads() -> None:
    """Without them a worker ends without a word in its log."""
    program = (
        "import faulthandler; from processor.runtime.worker.logging_setup import set_up_logging\n"
        "set_up_logging(); faulthandler._sigsegv()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert 'File "<string>", line 2 in <module>' in done.stderr


@pytest.mark.parametrize(
    "module", ["processor.runtime.worker.os_process:stop_on_signal", "spark_integration.cli.pipeline_file:stop_event"]
)
def test_a_signal_that_arrives_while_the_event_is_locked_ends_the_process(module: str) -> None:
    """Two signals at once, or one in the midst of a wait, find the lock of the event taken, by their own thread."""
    name, function = module.split(":")
    program = (
        f"import signal; from {name} import {function}\nstop = {function}()\n"
        "with stop._cond: signal.raise_signal(signal.SIGTERM)\n"
        "print(stop.wait(60))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(("before", "outcome"), [("SIG_DFL", "True"), ("SIG_IGN", "False")])
def test_a_closed_terminal_stops_a_worker_in_good_order_unless_nohup_started_it(before: str, outcome: str) -> None:
    """SIGHUP sets the event as SIGTERM does; ended by it, a worker would leave a transaction open."""
    program = (
        f"import signal; signal.signal(signal.SIGHUP, signal.{before})\n"
        "from processor.runtime.worker.os_process import stop_on_signal\n"
        "stop = stop_on_signal(); signal.raise_signal(signal.SIGHUP)\n"
        f"print(stop.wait(60 if {outcome} else 0.1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout == f"{outcome}\n", done.stderr
