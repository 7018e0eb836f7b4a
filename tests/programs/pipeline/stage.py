"""The running pipeline: jobs and workers, which are killed and started again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from tests.programs.faults.kills import is_ready, kill
from tests.programs.pipeline.job_process import JobProcess, Part
from tests.programs.pipeline.layout import GROUPS, LATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from tests.endtoend.world import Worker
    from tests.programs.pipeline.feed import Feed
    from tests.programs.pipeline.layout import Layout

_WORKERS: Final = 2
_LOOK_S: Final = 0.2
_PARTS: Final[tuple[Part, ...]] = ("both", "driver", "jvm")


class Stage:
    """Two workers and one process for each group of jobs; all end with the block."""

    def __init__(
        self, layout: Layout, report: Callable[[str], None], groups: Mapping[str, tuple[str, ...]] = GROUPS
    ) -> None:
        self.layout, self.report = layout, report
        self._groups = groups
        self.kills: list[str] = []
        """The victims, in order."""
        self._workers: list[Worker] = []
        self._jobs: dict[str, JobProcess] = {}

    def __enter__(self) -> Self:
        self._workers = [self.layout.world.start() for _ in range(_WORKERS)]
        self._jobs = {group: JobProcess(self.layout, jobs) for group, jobs in self._groups.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._jobs.values():
            process.close()

    def await_start(self) -> None:
        """Wait until workers have partitions and each job with input has completed a micro-batch."""
        self.wait(lambda: all(map(is_ready, self._workers)), "every worker having partitions")
        self.wait(lambda: all(job.has_worked(*LATE) for job in self._jobs.values()), "a micro-batch of each job")

    def await_work(self, feed: Feed) -> None:
        """Wait until each job has completed a micro-batch since its last start."""
        self.wait(lambda: all(job.has_worked() for job in self._jobs.values()), "a micro-batch of each job", feed)

    def refuse_second_driver(self) -> None:
        """Start a second driver of each group, which must be refused while the first one works."""
        for group, jobs in self._groups.items():
            second = JobProcess(self.layout, jobs)
            try:
                second.await_refusal()
            finally:
                second.close()
            self.report(f"  a second driver of {group} was refused")

    def wait(self, reached: Callable[[], bool], event: str, feed: Feed | None = None) -> None:
        """Wait for a condition; a worker or job that ends meanwhile is an error at once."""
        deadline_s = time.monotonic() + self.layout.patience_s
        while not reached():
            for worker in self.layout.world.workers:
                code = worker.process.poll()
                assert worker.is_expected_to_end or code is None, f"a worker ended with {code}:\n{worker.log()}"
            for job in self._jobs.values():
                job.refuse_end()
            if feed is not None:
                _ = feed.has_sent_all
            assert time.monotonic() < deadline_s, f"{event} did not happen in {self.layout.patience_s:g} s"
            time.sleep(_LOOK_S)  # Between two looks; the condition decides.

    def kill(self, feed: Feed, rng: random.Random, *, jobs: int, workers: int, seconds: float) -> None:
        """Kill jobs and workers while the feed runs, each at a random moment of its work, and start them again.

        Args:
            feed: the feed.
            rng: decides the order, the parts and the moments.
            jobs: the number of kills of jobs.
            workers: the number of kills of workers.
            seconds: the time over which they are spread, if the machine starts jobs fast enough.
        """
        # Each group of jobs in turn, and each of its parts.
        victims = [f"job {number}" for number in range(jobs)] + [f"worker {number}" for number in range(workers)]
        rng.shuffle(victims)
        groups = [[*self._groups][place % len(self._groups)] for place in range(jobs)]
        rng.shuffle(groups)
        for number, victim in enumerate(victims, 1):
            self._pause(rng.uniform(0, 2 * seconds / (len(victims) + 1)), feed)
            kind, place = victim.split()[0], int(victim.split()[1])
            if kind == "worker":
                shown = self._kill_worker(place % _WORKERS)
            else:
                shown = self._kill_job(groups[place], rng.choice(_PARTS), rng.uniform(0, 1), feed)
            self.kills.append(shown)
            self.report(f"  kill {number} of {len(victims)}: {shown}; {feed.sent:,} rows are sent")

    def _kill_worker(self, place: int) -> str:
        kill(self._workers[place])
        self._workers[place] = self.layout.world.start()
        return f"worker {place}"

    def _kill_job(self, group: str, part: Part, pause_s: float, feed: Feed) -> str:
        job = self._jobs[group]
        self.wait(job.has_worked, f"a micro-batch of {group}", feed)
        time.sleep(pause_s)  # The seed decides at which moment of its work.
        job.kill(part)
        self._jobs[group] = JobProcess(self.layout, self._groups[group])
        return f"{group} ({part})"

    def _pause(self, seconds: float, feed: Feed) -> None:
        until_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until_s, "a pause", feed)

    def drain(self) -> None:
        """Stop the jobs in good order, and process all input that is left; then stop the workers."""
        for group, job in self._jobs.items():
            job.stop()
            self.report(f"  {group} has drained")
        self._jobs.clear()
        layout = self.layout
        self._once("files", "raw", "lines")
        self._settle(layout.orders)
        self._settle(layout.notes)
        self._once("depth", "counts")
        self._settle(layout.depth)
        self._settle(layout.counts)
        self._once("archive", "book", "history", "typed")
        for worker in layout.world.workers:
            if worker.process.poll() is None:
                worker.is_expected_to_end = True
                worker.process.terminate()
                code = worker.process.wait(layout.patience_s)
                assert code == 0, f"exit code {code}:\n{worker.log()}"

    def _once(self, *jobs: str) -> None:
        process = JobProcess(self.layout, jobs, once=True)
        try:
            process.await_success()
        finally:
            process.close()
        self.report(f"  {', '.join(jobs)}: all input is processed")

    def _settle(self, family: str) -> None:
        topic = self.layout.topic("publish", family)
        self.wait(lambda: self.layout.world.processed(family, topic), f"processing {topic}")
