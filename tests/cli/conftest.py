"""Fixtures that run commands like a user, on topics of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.forked import COMMAND, run


class Cli:
    """The command `sowstream` in a directory with a settings file."""

    def __init__(self, directory: Path, tree: dict[str, object]) -> None:
        self.directory = directory
        self.settings = directory / "sowstream.yaml"
        self.settings.write_text(yaml.safe_dump(tree))

    def __call__(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return run(*arguments, given=given, directory=self.directory)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """The command line that runs it with this Python."""
        return [sys.executable, "-m", COMMAND, *arguments]


@pytest.fixture
def offline(tmp_path: Path) -> Cli:
    """Commands without a reachable Kafka."""
    return Cli(
        tmp_path,
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "topics": {"orders": {}},
            "conflated": {"slow": {"underlying": "orders"}, "slower": {"underlying": "slow"}},
        },
    )


@pytest.fixture
def cli(tmp_path: Path, bootstrap: str, unique: str) -> Cli:
    """Commands on a real Kafka; the topics are named `<unique>` and `<unique>_slow`, and do not exist yet."""
    return Cli(
        tmp_path,
        {
            "application_id": unique,
            "kafka": {"bootstrap.servers": bootstrap},
            "topics": {unique: {"partitions": 2}},
            "conflated": {f"{unique}_slow": {"underlying": unique, "interval": "500ms"}},
        },
    )
