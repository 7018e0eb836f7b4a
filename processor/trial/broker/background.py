"""The background broker of `sowstream broker start`: started, found and stopped by its data directory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from processor.trial.broker.directories import exclusive
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from processor.trial.broker.server import Server, await_ready, choose_port, java_environment

START_TIMEOUT_S = 90.0
"""Longest wait until it is ready, without the download of jars."""
STOP_TIMEOUT_S = 20.0
"""Time for an orderly stop; after it the process is killed."""
_STATE = "broker.json"


@dataclass(frozen=True, slots=True)
class Running:
    """A running broker in the background."""

    pid: int
    """Its Java process."""
    bootstrap: str
    """The address for clients."""


def find(data_dir: Path) -> Running | None:
    """The running broker of a data directory, if any.

    A process id alone proves nothing after a crash or a reboot: the process must have been started with the settings
    of this directory.
    """
    try:
        running = Running(**json.loads((data_dir / _STATE).read_text(encoding="utf-8")))
        command = psutil.Process(running.pid).cmdline()
    except (OSError, ValueError, TypeError, psutil.Error):
        return None
    return running if _settings(data_dir) in command else None


def start(data_dir: Path, port: int, heap: str) -> tuple[Running, bool]:
    """Start a broker that outlives this process, unless one runs in this directory.

    Returns:
        The broker, ready; and whether it was started by this call.

    Raises:
        Stop: no Java, no jars, or the port is taken; the message has the advice.
        BrokerUnavailable: it ended or did not become ready; with the end of its logs.
    """
    data_dir = data_dir.resolve()
    with exclusive(data_dir / "start.flock", waiting=f"Another process is starting a broker on {data_dir}; waiting."):
        if running := find(data_dir):
            return running, False
        server = Server(data_dir, choose_port(port), heap, find_java(), class_path())
        server.prepare()
        *first, broker = server.commands()
        env = java_environment()
        with (data_dir / "java.log").open("ab") as log:
            for command in first:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, env=env)
            # A session of its own: neither Ctrl-C nor a closed terminal reaches it.
            process = subprocess.Popen(
                broker, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=data_dir, start_new_session=True, env=env
            )
        running = Running(process.pid, server.bootstrap)
        try:
            (data_dir / _STATE).write_text(json.dumps(asdict(running)), encoding="utf-8")
            await_ready(server, has_ended=lambda: process.poll() is not None, timeout_s=START_TIMEOUT_S)
        except BaseException:
            _end(data_dir, running)
            raise
        return running, True


def stop(data_dir: Path) -> Running | None:
    """Stop the broker of this directory, by force if it takes too long; returns it if it was running."""
    running = find(data_dir)
    if running is not None:
        _end(data_dir, running)
    return running


def _end(data_dir: Path, running: Running) -> None:
    try:
        process = psutil.Process(running.pid)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
    except psutil.NoSuchProcess:
        pass
    (data_dir / _STATE).unlink(missing_ok=True)


def _settings(data_dir: Path) -> str:
    """The last argument of the broker's command line."""
    return str(data_dir.resolve() / "server.properties")
