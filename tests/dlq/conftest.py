"""A family of topics with dead letters in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endtoend.oracle import Seen
from tests.endtoend.world import World


class Office:
    """A world, and the command `sowstream dlq` on it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._written = 0

    def write(self, *reasons: str) -> None:
        """Dead letters as a worker would write them, a numbered one of each reason, over all partitions."""
        letters = []
        for reason in reasons:
            source = f"{self.world.name}.publish/0/{self._written}"
            headers = {"n": str(self._written), "dlq_reason": reason, "dlq_detail": "no", "source": source}
            letters.append((b"key %d" % self._written, b"%d" % self._written, headers))
            self._written += 1
        self.world.publish(letters, "dlq")

    def run(self, *arguments: str, crash: tuple[str, int] | None = None) -> subprocess.CompletedProcess[str]:
        """`sowstream dlq` to its end; `crash` as `World.start`."""
        program = (
            ["processor.cli.main"] if crash is None else ["tests.endtoend.crashing_worker", crash[0], str(crash[1])]
        )
        words = ["dlq", arguments[0], self.world.name, *arguments[1:], "-c", str(self.world.file)]
        return subprocess.run(
            [sys.executable, "-m", *program, *words], capture_output=True, text=True, timeout=60, check=False
        )

    def list(self, *arguments: str) -> list[dict[str, Any]]:
        """What `dlq list` prints."""
        done = self.run("list", *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def replay(self, *arguments: str) -> str:
        """What `dlq replay` says at its end."""
        done = self.run("replay", *arguments)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return done.stderr.splitlines()[-1]

    def sent(self) -> list[Seen]:
        """What was sent back, in order of the numbers in the messages."""
        return sorted(self.world.read("publish"), key=lambda seen: int(seen.value or b""))


@pytest.fixture
def office(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Office]:
    """Topics without a worker."""
    world = World(bootstrap, tmp_path, unique)
    yield Office(world)
    world.close()
