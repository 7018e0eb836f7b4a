"""Runs the programs of a page as a reader would, on the topics of a test."""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java, installed_java_major

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.endtoend.world import World

PATIENCE_S = 120.0
BUILD_PATIENCE_S = 500.0
"""Limit for a first build, which compiles much of Go's own library, also on few processors."""

_TOOLS = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
_GO_MODULE = "module page\n\ngo 1.24\n\nrequire github.com/twmb/franz-go v1.19.5\n"


def on_topics_of(world: World, text: str) -> str:
    """A program with the test's broker and topics in place of the page's."""
    text = text.replace("localhost:9092", world.bootstrap)
    return re.sub(r"\borders\.(?=publish|sow|delta)", f"{world.name}.", text)


def command(language: str, text: str, folder: Path) -> list[str]:
    """Write a program to the folder and return the command that runs it; skip the test if the machine lacks a tool."""
    folder.mkdir(exist_ok=True)
    if language == "python":
        (folder / "program.py").write_text(text)
        return [sys.executable, str(folder / "program.py")]
    if language == "java":
        if (installed_java_major() or 0) < 17 or shutil.which("javac") is None:
            pytest.skip("a Java program needs an installed JDK 17 or newer")
        [name] = re.findall(r"public class (\w+)", text)
        (folder / f"{name}.java").write_text(text)
        return ["java", "-Xmx128m", "-cp", class_path(), str(folder / f"{name}.java")]
    if language == "go":
        return _go_program(text, folder)
    assert language == "sh"
    for tool, main in _TOOLS.items():
        (folder / tool).write_text(f"#!/bin/sh\nexec '{find_java()}' -Xmx128m -cp '{class_path()}' {main} \"$@\"\n")
        (folder / tool).chmod(0o755)
    (folder / "program.sh").write_text(f"PATH='{folder}':$PATH\nset -e\n{_last_in_place(text)}")
    return ["sh", str(folder / "program.sh")]


def _last_in_place(text: str) -> str:
    """A script whose last command takes the shell's place, so that ending the process ends it."""
    return f"exec {text}"


def _go_program(text: str, folder: Path) -> list[str]:
    if shutil.which("go") is None:
        pytest.skip("a Go program needs an installed Go")
    (folder / "go.mod").write_text(_GO_MODULE)
    (folder / "main.go").write_text(text)
    build = subprocess.run(
        ["sh", "-c", "go mod tidy && go build -o program ."],
        cwd=folder, capture_output=True, text=True, timeout=BUILD_PATIENCE_S, check=False,
    )  # fmt: skip
    if "dial tcp" in build.stderr or "no such host" in build.stderr:
        pytest.skip(f"Go's module proxy cannot be reached: {build.stderr[-300:]}")
    assert build.returncode == 0, build.stderr
    return [str(folder / "program")]


def run(world: World, language: str, text: str) -> str:
    """The output of a program that ends by itself."""
    program = command(language, on_topics_of(world, text), world.directory / "program")
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Running:
    """A program that runs until it is closed, and the lines that it prints."""

    def __init__(self, world: World, language: str, text: str) -> None:
        program = command(language, on_topics_of(world, text), world.directory / "program")
        self._log = (world.directory / "program.log").open("w+")
        self._process = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def lines(self) -> Iterator[str]:
        """The lines as they arrive; an error if none arrives or the program has ended."""
        while True:
            line = self._lines.get(timeout=PATIENCE_S)
            if line is None:
                self._log.seek(0)
                raise AssertionError(f"the program has ended: {self._log.read()[-2000:]}")
            yield line

    def close(self) -> None:
        """Kill the program."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)
