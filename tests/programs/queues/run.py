"""One run: a feed, consumers, kills and aborts, and the comparison with the committed messages."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer

from processor.queues.share_groups import ShareGroups, set_share_groups
from tests.endtoend.world import World
from tests.programs.harness import Verdict
from tests.programs.queues.checks import Delivery, Harm, broken_promises, unfair

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.faults.broker.broker import Broker

_PATIENCE_S = 300.0
_SLICE_S = 0.1
_WARM_UP_S = 5.0
"""The broker's and the workers' first transactions are slow: latency is told without and with them."""
_PARTITIONS = 5
_SESSION = {"share.session.timeout.ms": "6000", "share.heartbeat.interval.ms": "1000"}


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    messages: int = 5_000
    rate: float = 2_000
    """Publications a second."""
    consumers: int = 10
    """Each in a process of its own."""
    workers: int = 2
    max_backlog: int = 100
    lease_s: float = 5.0
    consumer_kills: int = 3
    worker_kills: int = 2
    broker_kills: int = 1
    aborts: int = 5
    """Transactions on the queue's topic that are rolled back."""

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages at {self.rate:,.0f}/s, {self.consumers} consumers, {self.workers} workers; "
            f"kills: {self.consumer_kills} consumers, {self.worker_kills} workers, {self.broker_kills} broker; "
            f"{self.aborts} aborts; lease {self.lease_s:g} s, seed {self.seed}"
        )


def run(plan: Plan, broker: Broker, directory: Path, name: str, report: Callable[[str], None]) -> Verdict:
    """Run the plan on a broker of its own.

    Raises:
        AssertionError: a process failed, or nothing happened for five minutes.
    """
    report(str(plan))
    queue = f"{name}_jobs"
    section = {queue: {"underlying": name, "lease": plan.lease_s, "max_deliveries": 9}}
    # Kafka gives each partition to about as many members: ten share five partitions evenly.
    world = World(broker.bootstrap, directory, name, sections={"queues": section}, partitions=_PARTITIONS)
    set_share_groups(world.config)
    # A dead consumer is to be noticed within a run: until then its share of a partition falls to one other consumer.
    ShareGroups(world.config.kafka).set(world.config.share_group(queue), _SESSION)
    stage = _Stage(plan, broker, world, queue, report)
    try:
        return stage.play()
    finally:
        stage.close()
        world.close()


class _Stage:
    """The processes of a run."""

    def __init__(self, plan: Plan, broker: Broker, world: World, queue: str, report: Callable[[str], None]) -> None:
        self.plan, self.broker, self.world, self.queue, self.report = plan, broker, world, queue, report
        self.rng = random.Random(plan.seed)
        self.consumers: dict[str, tuple[subprocess.Popen[str], Path]] = {}
        self.killed: dict[str, float] = {}
        self.broker_killed: list[float] = []

    def play(self) -> Verdict:
        """Feed under faults, wait for all messages, and check."""
        plan, world = self.plan, self.world
        for _ in range(plan.workers):
            world.start(name=world.name)
        for _ in range(plan.consumers):
            self.start_consumer()
        began_s = time.monotonic()
        self._feed()
        world.settle()
        topic = world.read("queue", self.queue)
        expected = [seen.headers["source"] for seen in topic]
        deliveries = self._await(set(expected))
        seconds = max(one.done_s for one in deliveries if one.done_s is not None) - began_s
        first_s = {one.source: one.got_s - began_s for one in reversed(deliveries)}
        steady = sorted(delay for source, delay in self.delays.items() if first_s[source] > _WARM_UP_S)
        delays = sorted(self.delays.values())
        harm = Harm(self.killed, self.broker_killed)
        wrong = broken_promises(expected, deliveries, harm, lease_s=plan.lease_s)
        # One that was started in place of a killed one had less time.
        if plan.consumers % _PARTITIONS == 0:  # Kafka shares partitions, not messages: four share five unevenly.
            wrong += unfair(deliveries, harm, list(self.consumers)[: plan.consumers])
        if len(set(expected)) != plan.messages:
            wrong.append(f"{len(set(expected))} of {plan.messages} messages on the queue, {len(expected)} in all")
        again = len(deliveries) - len({one.source for one in deliveries})
        rate = len(expected) / seconds
        p50_ms, p99_ms, steady_ms = _part(delays, 0.5) * 1000, _part(delays, 0.99) * 1000, _part(steady, 0.99) * 1000
        figures = [
            f"{len(expected):,} messages in {seconds:.1f} s, {rate:,.0f}/s; {again} delivered again",
            f"publish to handler p50 {p50_ms:,.0f} ms, p99 {p99_ms:,.0f}; after {_WARM_UP_S:.0f} s {steady_ms:,.0f}",
        ]
        return Verdict(wrong, figures)

    def start_consumer(self) -> None:
        """Start one more consumer process, and wait until it has joined."""
        name = f"c{len(self.consumers)}"
        file = self.world.directory / f"{name}.jsonl"
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.queues.consumer", str(self.world.file), self.queue, str(file),
             f"--max-backlog={self.plan.max_backlog}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline().strip() == "ready"
        self.consumers[name] = program, file

    def _feed(self) -> None:
        """Publish, and do each fault when its share of the messages is published."""
        plan = self.plan
        kinds: list[Callable[[], None]] = [
            *[self._kill_consumer] * plan.consumer_kills,
            *[self._kill_worker] * plan.worker_kills,
            *[self._kill_broker] * plan.broker_kills,
            *[self._abort] * plan.aborts,
        ]
        self.rng.shuffle(kinds)
        moments = sorted(self.rng.uniform(0.05, 0.95) * plan.messages for _ in kinds)
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "partitioner": "murmur2_random",
                             "enable.idempotence": True, "linger.ms": 5})  # fmt: skip
        topic = self.world.config.kafka_names.topic(self.world.name, "publish")
        began_s = time.monotonic()
        for number in range(plan.messages):
            while kinds and number >= moments[0]:
                moments.pop(0)
                kinds.pop(0)()
            body = json.dumps({"id": number, "t": time.time()}).encode()
            producer.produce(topic, body, b"%d" % number)
            producer.poll(0)
            ahead_s = began_s + number / plan.rate - time.monotonic()
            if ahead_s > _SLICE_S:
                time.sleep(ahead_s)  # The feed has a rate.
        assert producer.flush(_PATIENCE_S) == 0

    def _kill_consumer(self) -> None:
        name = self.rng.choice([name for name in self.consumers if name not in self.killed])
        self.consumers[name][0].kill()
        self.killed[name] = time.monotonic()
        self.report(f"killed consumer {name}")
        self.start_consumer()

    def _kill_worker(self) -> None:
        alive = [worker for worker in self.world.workers if worker.process.poll() is None]
        self.rng.choice(alive).kill()
        self.world.start(name=self.world.name)
        self.report("killed a worker")

    def _kill_broker(self) -> None:
        self.broker.kill()
        self.broker_killed.append(time.monotonic())
        self.broker.start()
        self.broker_killed.append(time.monotonic())
        self.report("killed the broker")

    def _abort(self) -> None:
        """Write messages to the queue's topic, and roll them back."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": f"{self.queue}.aborts"})
        producer.init_transactions(60)
        producer.begin_transaction()
        topic = self.world.config.kafka_names.topic(self.queue, "queue")
        for number in range(20):
            headers: list[Any] = [("version", b"1"), ("source", b"rolled back/%d" % number)]
            producer.produce(topic, b'{"id":"rolled back"}', b"x", headers=headers, partition=number % _PARTITIONS)
        producer.flush(60)
        producer.abort_transaction(60)

    def _await(self, expected: set[str]) -> list[Delivery]:
        """Wait until every message was handled, or nothing happens any more; end the consumers."""
        done, moved_s = -1, time.monotonic()
        while True:
            deliveries = self._deliveries()
            handled = {one.source for one in deliveries if one.done_s is not None}
            if handled >= expected or time.monotonic() - moved_s > _PATIENCE_S:
                break
            if len(handled) != done:
                done, moved_s = len(handled), time.monotonic()
            time.sleep(_SLICE_S)  # Between two looks; the lines decide.
        # What is left may come again once more: a lease later nothing is under way.
        time.sleep(self.plan.lease_s)
        self.close()
        return self._deliveries()

    def _deliveries(self) -> list[Delivery]:
        self.delays: dict[str, float] = {}
        deliveries: list[Delivery] = []
        for name, (_, file) in self.consumers.items():
            open_ones: dict[str, Delivery] = {}
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    event, source, at_s, delay_s = json.loads(line)
                except ValueError:
                    continue  # The last line of a process that was killed.
                if event == "got":
                    open_ones[source] = Delivery(name, source, at_s)
                    self.delays.setdefault(source, delay_s)
                else:
                    deliveries.append(open_ones.pop(source)._replace(done_s=at_s))
            deliveries += open_ones.values()
        return deliveries

    def close(self) -> None:
        """End the consumers."""
        for program, _ in self.consumers.values():
            if program.stdin is not None and not program.stdin.closed:
                program.stdin.close()
        for program, _ in self.consumers.values():
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
            if program.stdout is not None:
                program.stdout.close()


def _part(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
