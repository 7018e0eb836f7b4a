"""The only broker is away for long, with records in flight: no worker ends, and work resumes soon after its return."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.programs.faults.broker.bounces import blaming
from tests.programs.faults.broker.broker import Broker
from tests.programs.faults.broker.crew import Crew
from tests.programs.faults.broker.roles import Disturbed
from tests.programs.faults.broker.scrape import Scrape, quiet_ports, samples
from tests.programs.faults.broker.silence import Silence
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AGAIN_MAX_S: Final = 15.0
"""Time from a broker's first answer to the first delta of every partition."""
METRICS_MAX_S: Final = 20.0
"""Time from the start of a process to its first metrics while no broker runs."""
METRIC: Final = "sowstream_kafka_unreachable_seconds"
NOTICED_MAX_S: Final = 20.0
"""Largest allowed error of that metric: a worker with no request to send notices an absent broker late."""
KINDS_MAX: Final = 8
"""Kinds of clients in a worker: each may log once a minute that Kafka is unreachable."""
_KEYS = 20_000
_RECORDS_MAX = 10_000_000  # More records than a scenario has time for: the scenario ends the load itself.
_RECORDS_PER_S = 250
_PATIENCE_S = 240.0
_NUMBER = re.compile(r"\d+(\.\d+)?")


class Outages:
    """Takes the broker away, brings it back, and checks the workers meanwhile."""

    def __init__(self, stage: Stage, broker: Broker, crew: Crew, ports: Sequence[int]) -> None:
        """Set the participants and the ports of the workers' metrics."""
        self._ports = ports
        self._stage = stage
        self._broker = broker
        self._crew = crew
        self.wrong: list[str] = []
        """Each broken promise, in a sentence."""

    def wait(self, what: str, away_s: float) -> None:
        """Let time pass while the broker is away, and count the workers' log lines."""
        began = datetime.now(UTC)
        before = len(self._crew.reasons)
        time.sleep(away_s)  # The outage must last this long.
        lines = count_log_lines_since(self._crew, began)
        ended = len(self._crew.reasons) - before
        lines_max = KINDS_MAX * (math.ceil(away_s / 60) + 1) * self._crew.size
        self._stage.report(f"  {what}, away for {away_s:g} s: {ended} ended, {sum(lines.values())} lines of log")
        for line, count in lines.most_common(4):
            self._stage.report(f"    {count:>4} x {line:.110}")
        if ended:
            self.wrong.append(f"{what}: {ended} workers ended: {self._crew.reasons[-1]}")
        for port in self._ports:
            if not away_s - NOTICED_MAX_S <= (shown_s := unreachable_s(port)) <= away_s + NOTICED_MAX_S:
                self.wrong.append(f"{what}: {METRIC} is {shown_s:g} after {away_s:g} s without a broker")
        if sum(lines.values()) > lines_max:
            self.wrong.append(f"{what}: {sum(lines.values())} lines of log, more than {lines_max}")

    def back(self, what: str, again: Callable[[float], dict[int, float | None]]) -> None:
        """Start the broker and wait until every partition makes progress again.

        Args:
            what: the outage's name.
            again: the time from a moment until each partition made progress; None: not yet.
        """
        before = len(self._crew.reasons)
        self._broker.start()
        back_s = time.monotonic()
        with blaming(self._broker):
            self._crew.wait(lambda: None not in again(back_s).values(), f"{what}: deltas", _PATIENCE_S)
        took = {partition: took_s or 0.0 for partition, took_s in again(back_s).items()}
        times_s = ", ".join(f"{took_s:.1f}" for took_s in took.values())
        self._stage.report(f"  {what}: first deltas {times_s} s after the broker answered")
        if max(took.values()) > AGAIN_MAX_S:
            self.wrong.append(f"{what}: a partition went on {max(took.values()):.1f} s after the broker answered")
        for port in self._ports:
            if (shown_s := unreachable_s(port)) != 0.0:
                self.wrong.append(f"{what}: {METRIC} is {shown_s:g} when all partitions go on")
        if (ended := len(self._crew.reasons) - before) > 0:
            self.wrong.append(f"{what}: {ended} workers ended when the broker was back: {self._crew.reasons[-1]}")


def be_away(stage: Stage, *, away_s: float, at_start_s: float) -> None:
    """Start workers without a broker; then, under load, take the broker away twice: killed, and stopped in good order.

    Raises:
        Disturbed: a worker ended, logged too much, did not serve its metrics or resumed too late.
    """
    broker = stage.keep(Broker(stage.directory / "broker"))
    ports = quiet_ports(2)
    world = stage.world(bootstrap=broker.bootstrap, runtime={"metrics_port": ports[0]})
    broker.stop()
    delta = f"{world.name}.delta"
    began_s = time.monotonic()
    with Scrape(ports) as scrape, Crew(world, 2) as crew:
        outages = Outages(stage, broker, crew, ports)
        outages.wait("at the start", at_start_s)
        late = [port for port in ports if scrape.first_s.get(port, math.inf) - began_s > METRICS_MAX_S]
        if late:
            outages.wrong.insert(0, f"no metrics within {METRICS_MAX_S:g} s at {len(late)} of {len(ports)} ports")
        with Silence(broker.bootstrap, [delta], world.config.topics[world.name].partitions) as silence:
            with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
                outages.back("at the start", partial(silence.first, delta))
                for what, end in (("killed", Broker.kill), ("stopped", Broker.stop)):
                    time.sleep(stage.rng.uniform(2, 4))  # The seed decides at which moment of their work.
                    end(broker)
                    outages.wait(what, away_s)
                    outages.back(what, partial(silence.since, delta))
                load.stop()
            with blaming(broker):
                crew.settle()
        scrape.stop()
    with blaming(broker):
        stage.check(world)
    for port, failures in scrape.failures.items():
        outages.wrong.append(f"port {port}: {len(failures)} of {scrape.asked[port]} scrapes failed: {failures[-1]}")
    stage.report(f"  {sum(scrape.asked.values())} scrapes, the slowest {scrape.slowest_s:.1f} s")
    if outages.wrong:
        raise Disturbed("\n".join(outages.wrong))


def unreachable_s(port: int) -> float:
    """The time for which a process reports that Kafka is unreachable; NaN if it reports none."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return next((value for name, _, value in samples(port) if name == METRIC), math.nan)
    return math.nan


def count_log_lines_since(crew: Crew, moment: datetime) -> Counter[str]:
    """Count the warnings and errors that workers have logged since a moment, by their texts without numbers."""
    lines: Counter[str] = Counter()
    for line in crew.logs.splitlines():
        try:
            entry = json.loads(line)
            at = datetime.fromisoformat(entry["timestamp"])
        except (ValueError, TypeError, KeyError):
            continue  # Plain text for people, at the end of a process.
        if at >= moment and entry.get("level") not in {"debug", "info"}:
            lines[_NUMBER.sub("N", f"{entry.get('logger', '')}: {entry['event']}")] += 1
    return lines


SCENARIOS = [
    Scenario(
        "broker-away",
        "workers start with the only broker away; then it is away for 40 s twice: no worker ends, metrics are served, "
        "all partitions go on within 15 s",
        500,
        partial(be_away, away_s=40.0, at_start_s=30.0),
    ),
    Scenario(
        "five-minutes-away",
        "the same with the broker away for 5 minutes twice; only if asked for",
        1500,
        partial(be_away, away_s=300.0, at_start_s=60.0),
        is_extra=True,
    ),
]
