"""One drill: a topic of sums with a worker, a calamity, the commands of the runbook, and a clock."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

import yaml
from confluent_kafka.admin import AdminClient

from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from tests.endtoend.world import Worker, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

PATIENCE_S: Final = 90.0
"""The longest wait for one fact."""
KEYS: Final = 40


class DrillFailed(Exception):
    """A fact did not come in time, or a command failed."""


class Drill:
    """A topic whose records are sums: a record that is merged twice, or lost, shows."""

    def __init__(self, bootstrap: str, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        """Create the topics.

        Args:
            bootstrap: Kafka.
            folder: an empty directory.
            name: the topic.
            settings: settings of the topic, and under `runtime` of the worker.
        """
        self.settings = settings
        topic = {"merge_rules": {"/sum": "sum"}, **settings}
        runtime = topic.pop("runtime", {})
        self.world = World(bootstrap, folder, name, runtime=runtime, **topic)
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.rounds = 0
        self.folder = folder
        self._random = random.Random(7)
        self.noticed_s = 0.0
        """From the calamity until the worker has said what is wrong."""
        self.recovered_s = 0.0
        """From the first command until all input is merged."""
        self._began_s = time.monotonic()
        self.command("topics", "apply")  # Makes the control topic, too, which orders to workers need.

    def publish(self, rounds: int = 5, *, more_bytes: int = 0) -> None:
        """Add one to each key, a number of times, in records of at least `more_bytes` bytes that do not compress."""
        for _ in range(rounds):
            more = {"more": self._random.randbytes(more_bytes // 2).hex()} if more_bytes else {}
            self.world.publish([(b"%d" % key, {"id": key, "sum": 1, **more}, {}) for key in range(KEYS)])
        self.rounds += rounds

    def start(self, names: list[str] | None = None, *, state_dir: Path | None = None) -> Worker:
        """Start a worker of these topics, or of the drill's; `state_dir` is another place than the settings name."""
        self.step("sowstream worker", "started")
        return self.world.start(name=names, state_dir=state_dir)

    def configure(self, topic: str, **settings: Any) -> None:
        """Write settings of a topic, perhaps a new one, into the settings file."""
        tree = yaml.safe_load(self.world.file.read_text())
        tree["topics"][topic] = {**tree["topics"].get(topic, {}), **settings}
        self.world.file.write_text(yaml.safe_dump(tree))
        self.step("sowstream.yaml", f"{', '.join(settings)} of {topic} changed")

    def lose_sow(self, worker: Worker, *, adopt: str) -> None:
        """Delete the SOW topic under a worker, and create it again, empty; `adopt` is where the input begins then."""
        self.calamity("the SOW topic is deleted")
        topic = f"{self.name}.sow"
        self.admin.delete_topics([topic])[topic].result(30)
        self.publish()  # Publishers notice nothing.
        self.notice(worker, topic, "was deleted")
        self.stop(worker)
        self.command("topics", "apply")
        self.command("offsets", "adopt", self.name, "--from", adopt, "--yes")

    def make_anew(self) -> None:
        """Delete the topics, and create them again, empty."""
        names = [spec.name for spec in specs(self.world.config)]
        admin = Admin(self.world.config.kafka)
        admin.delete(names)
        self.wait(lambda: not {*names} & {*admin.cluster().topics}, "the topics are deleted")
        self.command("topics", "apply")

    def stop(self, worker: Worker) -> None:
        """Stop a worker, if it has not ended."""
        if worker.process.poll() is None:
            code = worker.stop()
            self.step("SIGTERM", f"exit code {code}")
        self.world.workers.remove(worker)

    def settle(self) -> None:
        """Wait until all input is merged."""
        self.wait(self.world.processed, "all input is merged")

    def calamity(self, text: str) -> None:
        """Start the clock of `noticed_s`."""
        print(f"   {text}", flush=True)
        self._began_s = time.monotonic()

    def notice(self, worker: Worker, *words: str) -> None:
        """Wait until the worker's log has these words."""
        worker.is_expected_to_end = True

        def said() -> bool:
            text = " ".join(worker.file.read_text(errors="replace").split())
            return all(word in text for word in words)

        self.wait(said, f"the worker's log has {', '.join(map(repr, words))}", worker)
        self.noticed_s = self.elapsed_s()
        self._began_s = time.monotonic()

    def recovered(self, topic: str | None = None) -> None:
        """Wait until all input is merged, and check that each record counts once; `topic` has it now, if it moved."""
        if topic is None:
            self.settle()
        else:
            self.wait(lambda: self._sums(topic) == self._wanted(), f"all input is merged into {topic}")
        self.recovered_s = self.elapsed_s()
        self.expect(topic)

    def elapsed_s(self) -> float:
        """Seconds since the calamity, or since the cure has begun."""
        return time.monotonic() - self._began_s

    def _wanted(self) -> dict[bytes | None, int]:
        return {b"%d" % key: self.rounds for key in range(KEYS)}

    def _sums(self, topic: str | None) -> dict[bytes | None, int]:
        return {rec.key: json.loads(rec.value)["sum"] for rec in self.world.read("sow", topic) if rec.value}

    def expect(self, topic: str | None = None) -> None:
        """Check the sum of each key in the drill's topic, or in this one."""
        sums, wanted = self._sums(topic), self._wanted()
        if sums != wanted:
            wrong = {key: (value, wanted.get(key)) for key, value in sums.items() if value != wanted.get(key)}
            raise DrillFailed(f"the sums are wrong (is, should be): {wrong}, {len(sums)} of {KEYS} keys")
        self.step("check", f"{KEYS} sums are right: each of {self.rounds * KEYS} records was merged once")

    def command(self, *words: str, code: int | None = 0) -> str:
        """Run `sowstream …`, and print it with its time; returns its output."""
        program = [sys.executable, "-m", "processor.cli.main", *words, "-c", str(self.world.file)]
        return self.run(f"sowstream {' '.join(words)}", program, code=code)

    def run(
        self,
        name: str,
        program: Sequence[str],
        *,
        code: int | None = 0,
        timeout_s: float = PATIENCE_S,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a program, and print it with its time; returns its output.

        Raises:
            DrillFailed: it has ended with another exit code than `code`; None: any will do.
        """
        began_s = time.monotonic()
        environment = {**os.environ, "NO_COLOR": "1"} if env is None else env
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment)
        self.step(name, f"exit code {done.returncode}, {time.monotonic() - began_s:.1f} s")
        if code is not None and done.returncode != code:
            raise DrillFailed(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def kafka_tool(self, tool: str, *words: str) -> str:
        """Run one of Kafka's own tools, by its class."""
        java = [str(find_java()), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", class_path(), tool]
        options = ["--bootstrap-server", self.world.bootstrap]
        done = subprocess.run([*java, *options, *words], capture_output=True, text=True, check=False, timeout=60)
        self.step(f"{tool.rpartition('.')[2]} {' '.join(words)}", f"exit code {done.returncode}")
        if done.returncode:
            raise DrillFailed(done.stdout + done.stderr)
        return done.stdout

    def wait(self, reached: Callable[[], bool], what: str, worker: Worker | None = None) -> None:
        """Wait for a fact.

        Raises:
            DrillFailed: it does not come in time.
        """
        began_s = time.monotonic()
        while not reached():
            if time.monotonic() - began_s > PATIENCE_S:
                log = worker.log() if worker else "".join(one.log() for one in self.world.workers)
                raise DrillFailed(f"not within {PATIENCE_S:g} s: {what}\n{log}")
            time.sleep(0.1)  # Between two looks; the fact decides.
        self.step("wait", what)

    def step(self, action: str, outcome: str) -> None:
        """Print a step with the seconds since the calamity, or since the cure has begun."""
        print(f"   {self.elapsed_s():6.1f} s  {action}: {outcome}", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.world.close()
