"""One run: a feed of updates, subscribers that join at random moments, and the comparison with the topic."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from confluent_kafka import Consumer, TopicPartition

from processor.kafka.admin.admin import Admin
from processor.topics.family import family_specs
from tests.programs.harness import Verdict
from tests.programs.subscriptions.orders import WANTED, Held
from tests.programs.subscriptions.subscriber import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTITIONS = 4
QUIET_S = 8.0
_COMPACTED_SOON = {
    "segment.ms": "10000",
    "min.compaction.lag.ms": "45000",  # A snapshot must be read within this time.
    "min.cleanable.dirty.ratio": "0.05",
}


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    records: int = 1_000_000
    rate: float = 20_000
    """Updates a second."""
    seconds: float = 60
    """Duration of the feed."""
    subscribers: int = 20
    """At most 20."""
    processes: int = 1
    """Processes among which they are divided."""

    def __str__(self) -> str:
        return (
            f"{self.records:,} records, {self.rate:,.0f} updates/s for {self.seconds:g} s, "
            f"{self.subscribers} subscribers in {self.processes} process{'es' * (self.processes > 1)}, seed {self.seed}"
        )


def run(plan: Plan, bootstrap: str, directory: Path, name: str, report: Callable[[str], None]) -> Verdict:
    """Run the plan; the outcome lists the broken promises.

    Raises:
        AssertionError: a process failed.
    """
    report(str(plan))
    kafka = {"bootstrap.servers": bootstrap}
    config = directory / "sowstream.yaml"
    config.write_text(yaml.safe_dump({"kafka": kafka, "topics": {name: {"key": ["/id"], "partitions": PARTITIONS}}}))
    Admin(kafka).create(family_specs(name, ("sow", "delta"), partitions=PARTITIONS, settings=_COMPACTED_SOON))
    with contextlib.ExitStack() as running:
        feed = running.enter_context(
            _program("feed", bootstrap, f"{name}.sow", f"--records={plan.records}", f"--rate={plan.rate}",
                     f"--seconds={plan.seconds}", f"--seed={plan.seed}")
        )  # fmt: skip
        _expect(feed, "loaded")
        report("loaded")
        subscribers = [
            running.enter_context(
                _program("subscriber", str(config), name, f"--numbers={','.join(map(str, numbers))}",
                         f"--seconds={plan.seconds * 0.5}", f"--quiet={QUIET_S}", f"--seed={plan.seed + number}")
            )
            for number, numbers in enumerate(_shares(plan))
        ]  # fmt: skip
        for subscriber in subscribers:
            _expect(subscriber, "ready")
        report("the first of each process has its snapshot")
        assert feed.stdin is not None
        print("go", file=feed.stdin, flush=True)
        outputs = [json.loads(program.communicate()[0]) for program in (feed, *subscribers)]
        assert not any(program.returncode for program in (feed, *subscribers)), "a process failed"
    sent, subscriber_outputs = outputs[0], outputs[1:]
    figures = [f"sent {sent['sent']:,}, at most {sent['behind_s'] * 1000:,.0f} ms behind the rate"]
    report(f"{figures[0]}; reading the topic")
    held, written, kept = _sow(bootstrap, f"{name}.sow")
    figures.append(f"the topic: {len(held):,} live records; of {written:,} offsets {kept:,} records are left")
    expected = _expected(held)
    wrong = [line for one in subscriber_outputs for line in _judge(one["views"], expected)]
    return Verdict(wrong, figures + [_figures(one) for one in subscriber_outputs])


def _shares(plan: Plan) -> list[list[int]]:
    """The subscribers of each process."""
    numbers = list(range(min(plan.subscribers, len(WANTED))))
    return [numbers[first :: plan.processes] for first in range(plan.processes)]


@contextlib.contextmanager
def _program(module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program of this run, which ends with the block."""
    program = subprocess.Popen(
        [sys.executable, "-m", f"tests.programs.subscriptions.{module}", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def _expect(program: subprocess.Popen[str], word: str) -> None:
    assert program.stdout is not None
    word_read = program.stdout.readline().strip()
    assert word_read == word, f"a program said {word_read!r}, not {word!r}"


def _sow(bootstrap: str, topic: str) -> tuple[dict[str, Held], int, int]:
    """The last committed record of every key, by an independent consumer; and the numbers of offsets and records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    held: dict[str, Held] = {}
    written = kept = 0
    todo = set(range(PARTITIONS))
    while todo:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is not None:
                todo.discard(message.partition())
                written += message.offset() or 0
                continue
            kept += 1
            key, value = (message.key() or b"").decode(), message.value()
            if value is None:
                held.pop(key, None)
            else:
                held[key] = Held.of(json.loads(value))
    consumer.close()
    return held, written, kept


def _expected(held: dict[str, Held]) -> dict[str, str]:
    """The records that each subscriber must hold."""
    return {
        str(number): digest((key, one) for key, one in held.items() if wanted.matches(one.region, one.qty))
        for number, wanted in enumerate(WANTED)
    }


def _judge(views: dict[str, Any], expected: dict[str, str]) -> list[str]:
    wrong = []
    for sub_id, view in views.items():
        name = f"subscriber {sub_id} ({WANTED[int(sub_id)].filter})"
        wrong += [f"{name}: {complaint}" for complaint in view["complaints"]]
        if view["digest"] != expected[sub_id]:
            wrong.append(f"{name} holds {view['digest']}; the topic has {expected[sub_id]}")
    return wrong


def _figures(output: dict[str, Any]) -> str:
    views = output["views"].values()
    latency = ", ".join(f"{name} {value}" for name, value in output["latency_ms"].items())
    slowest_s = max(view["snapshot_s"] or 0.0 for view in views)
    return (
        f"a process of {len(views)} subscribers: {sum(view['messages'] for view in views):,} messages, snapshots of "
        f"{sum(view['snapshot'] for view in views):,} records, the slowest told in {slowest_s:.1f} s; update to "
        f"subscriber, ms: {latency}; {output['cpu_s']:.0f} s of a processor, {output['memory_mb']:,} MB"
    )
