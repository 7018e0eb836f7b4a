"""Moves the merge of the orders from the workers to Spark and back, and lets each command die at each of its steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from processor.kafka.admin.admin import Admin
from tests.programs.pipeline.job_process import Program
from tests.programs.pipeline.layout import PARTITIONS

if TYPE_CHECKING:
    from tests.programs.pipeline.feed import Feed
    from tests.programs.pipeline.stage import Stage

STEPS: Final = {
    "takeover": ("check", "claim", "drain", "fence", "begin", "verify"),
    "handback": ("check", "claim", "wait", "drain", "return", "verify"),
}
"""The steps of each command."""
_MORE: Final = 200


class Moves:
    """Takes the merge over and hands it back, a number of times."""

    def __init__(self, stage: Stage, feed: Feed, count: int) -> None:
        """Set up.

        Args:
            stage: the running pipeline.
            feed: sends input meanwhile.
            count: how many times to move to Spark and back; the steps are divided among them.
        """
        self.deaths: list[str] = []
        """The command and the step of each death."""
        self._stage, self._feed, self._count = stage, feed, count
        self._admin = Admin(stage.layout.world.config.kafka)

    def run(self) -> None:
        """Move to Spark and back; the merge on Spark is killed once each time."""
        for turn in range(self._count):
            self._stage.report(f"  move {turn + 1} of {self._count}; {self._feed.sent:,} rows are sent")
            self._move("takeover", turn)
            with self._merging() as merge:
                self._await_more(merge)
                merge.kill("both")
            with self._merging() as merge:
                self._await_more(merge)
                self._move("handback", turn)
                # It finds the fence, and ends by itself.
                merge.await_success()
            self._await_more()

    def _move(self, command: str, turn: int) -> None:
        """Run a command once for each of its steps in this turn, at which it dies, and then to its end."""
        for step in STEPS[command][turn :: self._count]:
            program = self._program(command, step)
            try:
                code = program.await_end()
            finally:
                program.close()
            assert code == -signal.SIGKILL, f"{command} did not die at {step}, but ended with {code}:\n{program.text}"
            self.deaths.append(f"{command} at {step}")
            self._stage.report(f"    {command} has died at {step}")
        program = self._program(command)
        try:
            program.await_success()
        finally:
            program.close()
        self._stage.report(f"    {command} is done")

    def _program(self, command: str, step: str | None = None) -> Program:
        layout = self._stage.layout
        module = ["spark_integration.cli"] if step is None else ["tests.programs.pipeline.dying_command", step]
        arguments = [command, layout.orders, "-c", str(layout.file)]
        return Program([*module, *arguments], layout.directory / f"{command}.log", layout.patience_s)

    @contextmanager
    def _merging(self) -> Iterator[Program]:
        program = self._program("merge")
        try:
            yield program
        finally:
            program.close()

    def _await_more(self, merge: Program | None = None) -> None:
        """Wait until more updates are merged."""
        wanted = self._count_sow() + _MORE

        def has_more() -> bool:
            if merge is not None:
                merge.refuse_end()
            return self._count_sow() >= wanted

        self._stage.wait(has_more, "merging more updates", self._feed)

    def _count_sow(self) -> int:
        ends = self._admin.end_offsets(self._stage.layout.topic("sow"), range(PARTITIONS))
        return sum(ends.values())
