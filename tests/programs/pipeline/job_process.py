"""Jobs of the pipeline in a process of their own: a driver and its JVM, which can be killed apart or together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import psutil

from tests.programs.pipeline.layout import BROKEN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.programs.pipeline.layout import Layout

Part: TypeAlias = Literal["driver", "jvm", "both"]
"""The processes that a kill hits; the others end by themselves."""

_LOOK_S: Final = 0.1


class JobProcess:
    """`sowstream-spark run JOB…`, from its start to its end."""

    def __init__(self, layout: Layout, jobs: Sequence[str], *, once: bool = False) -> None:
        """Start the jobs.

        Args:
            layout: the pipeline.
            jobs: the names of jobs.
            once: process the input that exists now, and end.
        """
        self.jobs = tuple(jobs)
        self._checkpoints = layout.directory / "checkpoints"
        self._begun = {job: self._commits(job) for job in jobs}
        command = ["spark_integration.cli", "run", *jobs, "-c", str(layout.file), *["--once"] * once]
        self._program = Program(command, layout.directory / f"job-{'-'.join(jobs)}.log", layout.patience_s)

    def has_worked(self, *idle: str) -> bool:
        """Return whether each job has completed a micro-batch since the start; a process that has ended is an error.

        Args:
            idle: jobs without input.
        """
        self._program.refuse_end()
        return all(self._commits(job) > begun for job, begun in self._begun.items() if job not in (BROKEN, *idle))

    def refuse_end(self) -> None:
        """Raise an error if the process has ended by itself."""
        self._program.refuse_end()

    def kill(self, part: Part) -> None:
        """Kill with SIGKILL; the driver's and the JVM's counterpart must end by itself.

        Raises:
            AssertionError: the process had ended already, or its rest lives on.
        """
        self._program.kill(part)

    def stop(self) -> None:
        """Send SIGTERM, and wait until the jobs have drained.

        Raises:
            AssertionError: it did not end in time, or not with exit code 0.
        """
        self._program.refuse_end()
        self._program.terminate()
        # It has not failed yet if it has just been started again.
        self._program.await_success(*[0, 1] if BROKEN in self.jobs else [0])

    def await_success(self) -> None:
        """Wait for the end of a process with `once`; another exit code than 0 is an error."""
        self._program.await_success()

    def await_refusal(self) -> None:
        """Wait for the end of a process whose jobs another one runs; another end is an error."""
        self._program.await_success(2)  # Wrong usage.
        assert "another driver runs this job" in self._program.text, self._program.text[-6000:]

    def _commits(self, job: str) -> int:
        """The number of the last completed micro-batch in a job's checkpoint; -1 if there is none."""
        directory: Path = self._checkpoints / job / "commits"
        names = [file.name for file in directory.iterdir()] if directory.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def close(self) -> None:
        """Kill every process that is left."""
        self._program.close()


class Program:
    """A Python program with a JVM, in a session of its own, by which all its processes are found."""

    def __init__(self, command: Sequence[str], log: Path, patience_s: float) -> None:
        """Start `python -m command`, which appends to a log; temporary files are next to that."""
        self._log, self._patience_s = log, patience_s
        scratch = log.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        # A JVM that is killed soon does with the quick compiler.
        compiler = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m"
        options = f"-XX:-UsePerfData {compiler} -Djava.io.tmpdir={scratch}"
        env = {"NO_COLOR": "1", "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "SPARK_SUBMIT_OPTS": options}
        with log.open("ab") as file:
            file.write(f"--- {' '.join(command)}\n".encode())
            file.flush()
            self._begin = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=os.environ | env,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """The log of this start."""
        with self._log.open("rb") as file:
            file.seek(self._begin)
            return file.read().decode(errors="replace")

    def has_ended(self) -> bool:
        """Return whether the driver has ended."""
        return self._process.poll() is not None

    def refuse_end(self) -> None:
        """Raise an error if the driver has ended by itself."""
        code = self._process.poll()
        assert code is None, f"{self._log.name}: ended by itself with exit code {code}:\n{self._end()}"

    def terminate(self) -> None:
        """Send SIGTERM to the driver."""
        self._process.send_signal(signal.SIGTERM)

    def await_end(self) -> int:
        """Wait for the end of the driver, and then of its JVM; returns the exit code, negative for a signal."""
        try:
            code = self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._log.name}: still runs after {self._patience_s:g} s:\n{self._end()}") from None
        self._await_rest()
        return code

    def await_success(self, *codes: int) -> None:
        """Wait for the end; another exit code than 0, or than these, is an error."""
        code = self.await_end()
        assert code in (codes or (0,)), f"{self._log.name}: exit code {code}:\n{self._end()}"

    def kill(self, part: Part) -> None:
        """Kill the driver, the JVM or both with SIGKILL, and wait until all of it has ended."""
        self.refuse_end()
        jvm = self._rest("java")
        assert jvm or part == "driver", f"{self._log.name}: there is no JVM to kill"
        if part != "driver":
            for process in jvm:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if part == "jvm":
            code = self.await_end()
            is_clear = "JVM has ended" in self.text and "Traceback" not in self.text
            assert (code, is_clear) == (1, True), f"{self._log.name}: exit code {code} without its JVM:\n{self._end()}"
            return
        self._process.kill()
        self._process.wait()
        self._await_rest()

    def close(self) -> None:
        """Kill every process of the session."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for process in self._rest():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _await_rest(self) -> None:
        """Wait until the other processes of the session have ended by themselves."""
        deadline_s = time.monotonic() + self._patience_s
        while rest := self._rest():
            assert time.monotonic() < deadline_s, f"{self._log.name}: it left {rest} behind"
            time.sleep(_LOOK_S)

    def _rest(self, name: str = "") -> list[psutil.Process]:
        """The processes of the session but the driver, the JVM and Python's daemons and workers; or those of a name."""
        rest = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                is_dead = process.status() == psutil.STATUS_ZOMBIE
                is_other = bool(name) and process.name() != name
                if os.getsid(process.pid) == self._process.pid != process.pid and not is_dead and not is_other:
                    rest.append(process)
        return rest

    def _end(self) -> str:
        return self.text[-6000:]
