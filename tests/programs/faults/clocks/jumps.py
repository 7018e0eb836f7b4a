"""Clocks of brokers and workers that are wrong, those of workers jumping while records flow.

Brokers' clocks do not jump: Kafka 4.3.1 sends no heartbeat after a jump back until the former time is reached, so the
controller takes the broker for dead.
"""

from __future__ import annotations

import time
from typing import Final

from processor.config.runtime import RuntimeConfig
from tests.programs.faults.broker.cluster import Cluster
from tests.programs.faults.broker.crew import Crew
from tests.programs.faults.broker.roles import MARGIN_S, Disturbed
from tests.programs.faults.broker.silence import Silence
from tests.programs.faults.clocks.skewed_clock import SkewedClock, build
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

_KEYS: Final = 20_000
_RECORDS_MAX: Final = 10_000_000
_RECORDS_PER_S: Final = 250
_JUMPS: Final = 10
_SKEW_MAX_S: Final = 28 * 60.0
"""Two clocks differ by less than an hour: Kafka refuses a record whose time is an hour ahead of the broker's."""
_TOO_FAR_S: Final = 2 * 3600.0
_REFUSED: Final = "by the clock of this machine"


def jump(stage: Stage) -> None:
    """Let three brokers and two workers have clocks up to 28 minutes off, and those of the workers jump.

    Then one worker's is two hours ahead for a while, where Kafka refuses what it sends: it says so, goes on when its
    clock is right again, and nothing is lost.

    Raises:
        Disturbed: a partition was silent for too long, or a worker ended.
    """
    library = build(stage.directory)
    clocks = {name: SkewedClock(library, stage.directory / f"clock-{name}") for name in ("1", "2", "3", "a", "b")}
    brokers = {node: clocks[f"{node}"] for node in (1, 2, 3)}
    for name, clock in clocks.items():
        clock.set(stage.rng.uniform(-_SKEW_MAX_S, _SKEW_MAX_S))
        stage.report(f"  {name}: {clock.skew_s / 60:+.0f} minutes")
    cluster = stage.keep(Cluster(stage.directory, heap="768m", clocks=brokers))
    own = RuntimeConfig()
    limits = {"session_timeout_s": own.session_timeout_s, "transaction_timeout_s": own.transaction_timeout_s}
    world = stage.world(bootstrap=cluster.bootstrap, runtime=limits)
    delta = f"{world.name}.delta"
    silence = Silence(cluster.bootstrap, [delta], world.config.topics[world.name].partitions)
    with Crew(world, 2, clocks=[clocks["a"], clocks["b"]]) as crew, silence:
        with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
            crew.wait(lambda: all(crew.has_logged("restored")), "partitions of both")
            crew.wait(lambda: not silence.silent(delta), "deltas of every partition")
            began_s = time.monotonic()
            for _ in range(_JUMPS):
                time.sleep(stage.rng.uniform(2, 6))  # The seed decides at which moment of their work.
                name = stage.rng.choice(("a", "b"))
                clocks[name].set(stage.rng.uniform(-_SKEW_MAX_S, _SKEW_MAX_S))
                stage.report(f"  {name}: {clocks[name].skew_s / 60:+.0f} minutes")
            crew.wait(lambda: not silence.silent(delta), "deltas of every partition")
            longest_s = max(silence.longest_s(delta, began_s).values())
            stage.report(f"  longest silence of a partition {longest_s:.1f} s, {len(crew.reasons)} workers ended")
            _be_refused(stage, crew, silence, delta, clocks["a"])
            load.stop()
        crew.settle()
    stage.check(world)
    if longest_s > own.session_timeout_s + MARGIN_S or crew.reasons:
        raise Disturbed(f"a partition was silent for {longest_s:.1f} s; workers that ended: {crew.reasons}")


def _be_refused(stage: Stage, crew: Crew, silence: Silence, delta: str, clock: SkewedClock) -> None:
    """Put a worker's clock two hours ahead, wait for its words, and put it right."""
    before = crew.logs.count(_REFUSED)
    clock.set(_TOO_FAR_S)
    crew.wait(lambda: crew.logs.count(_REFUSED) > before, "a word about the clock")
    crew.wait(lambda: bool(silence.silent(delta)), "partitions of that worker standing still")
    stage.report(f"  a: {_TOO_FAR_S / 60:+.0f} minutes; partitions that stand still: {silence.silent(delta)}")
    clock.set(0.0)
    back_s = time.monotonic()
    crew.wait(lambda: not silence.silent(delta), "deltas of every partition")
    stage.report(f"  put right: all partitions go on after {time.monotonic() - back_s:.1f} s")


SCENARIOS = [
    Scenario(
        "clocks",
        "clocks of three brokers and two workers are up to 28 minutes off, and the workers' jump 10 times; then one "
        "worker's is two hours ahead, where Kafka refuses its records until it is put right",
        400,
        jump,
    )
]
