"""A topic family with dead letters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processor.cli.dlq import as_json
from processor.operate.letter_replay import DeadLetterReplay
from processor.operate.waiting_letters import LetterSelection, WaitingLetters, survey
from tests.endtoend.oracle import Seen
from tests.endtoend.world import World
from tests.forked import COMMAND, run


class Office:
    """A family with dead letters, and methods to list them and send them back."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.config, self.name = world.config, world.name
        self._written = 0

    def write(self, *reasons: str) -> None:
        """Write dead letters as a worker would, a numbered one for each reason, over all partitions."""
        letters = []
        for reason in reasons:
            source = f"{self.name}.publish/0/{self._written}"
            headers = {"n": str(self._written), "dlq_reason": reason, "dlq_detail": "no", "source": source}
            letters.append((b"key %d" % self._written, b"%d" % self._written, headers))
            self._written += 1
        self.world.publish(letters, "dlq")

    def waiting(self) -> list[dict[str, Any]]:
        """The waiting letters, as `dlq list` prints them."""
        with WaitingLetters(self.config, self.name) as there:
            return [json.loads(as_json(letter)) for _, letters in there.letters() for letter in letters]

    def replay(self, selection: LetterSelection = LetterSelection()) -> int:  # noqa: B008 - it cannot change
        """Send back the selected letters; returns their number."""
        with DeadLetterReplay(self.config, self.name) as running:
            running.send(survey(running.waiting.letters(), selection), selection)
            return running.sent

    def run(self, *arguments: str, crash: tuple[str, int] | None = None) -> subprocess.CompletedProcess[str]:
        """Run `sowstream dlq` to its end; `crash` as in `World.start`."""
        module, *before = [COMMAND] if crash is None else ["tests.operate.crashing_replay", crash[0], str(crash[1])]
        words = [*before, "dlq", arguments[0], self.name, *arguments[1:], "-c", str(self.world.file)]
        # The broker must not remove old segments before a test looks.
        return run(*words, module=module, environment={"SOWSTREAM_RUNTIME__TRANSACTION_TIMEOUT_S": "300"})

    def sent(self) -> list[Seen]:
        """The letters sent back, in order of the numbers in the messages."""
        return sorted(self.world.read("publish"), key=lambda seen: int(seen.value or b""))


@pytest.fixture
def office(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[Office]:
    """A family without a worker."""
    world = World(bootstrap, tmp_path, unique)
    yield Office(world)
    world.close()
