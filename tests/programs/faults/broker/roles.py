"""Ends three brokers by their roles or in turn: how long partitions are silent, and which workers are affected."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.config.runtime import RuntimeConfig
from tests.programs.faults.broker.cluster import Cluster
from tests.programs.faults.broker.crew import Crew
from tests.programs.faults.broker.silence import Silence
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.endtoend.world import World

MARGIN_S: Final = 15.0
"""Longest silence of a partition beyond a worker's session timeout after one broker of three is killed."""
_KEYS = 20_000
_RECORDS_MAX = 10_000_000  # More records than a scenario has time for: the scenario ends the load itself.
_RECORDS_PER_S = 250
_AWAY_S = 12.0, 20.0  # Longer than Kafka needs to notice that a broker is dead.
_PATIENCE_S = 240.0
_SETTLED_S = 3.0
_KAFKAS_OWN = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}


class Disturbed(AssertionError):
    """No record is lost, but a worker ended or a partition was silent that must not."""


class BrokerOutage(NamedTuple):
    """The effects of the outage of one or two brokers on the workers and partitions."""

    role: str
    nodes: tuple[int, ...]
    input_s: float
    """Longest silence of a partition of the input: without input, workers have no records to process."""
    delta_s: float
    """Longest silence of any partition that workers write."""
    partition: int
    """The partition of that silence."""
    ended: int
    """Number of workers that ended."""
    wiped: int
    """Number of states that were wiped."""
    is_over: bool
    """Whether all partitions resumed in time."""

    @property
    def line(self) -> str:
        """A line for people."""
        nodes = " and ".join(map(str, self.nodes))
        more = f", {self.ended} ended, {self.wiped} wiped" + ("" if self.is_over else ", STILL SILENT")
        worst = f"delta {self.delta_s:.1f} s (partition {self.partition})"
        return f"{self.role:<24} broker {nodes}: input {self.input_s:.1f} s, {worst}{more}"


class Roles:
    """A cluster under load whose brokers are killed by their roles, or restarted."""

    def __init__(self, stage: Stage, cluster: Cluster, world: World, crew: Crew, silence: Silence) -> None:
        """Set the participants, all of which must run."""
        self._stage = stage
        self._cluster = cluster
        self._crew = crew
        self._silence = silence
        self._input, self._delta = f"{world.name}.publish", f"{world.name}.delta"
        prefix, group = f"{world.config.application_id}.", f"{world.config.application_id}.{world.name}"
        self.find: dict[str, Callable[[], int]] = {
            "group coordinator": lambda: cluster.group_coordinator(group),
            "transaction coordinator": lambda: cluster.transaction_coordinator(prefix),
            "controller": cluster.controller,
            "leader of a SOW partition": lambda: cluster.leader(f"{world.name}.sow", stage.rng.randrange(4)),
        }
        self.outages: list[BrokerOutage] = []

    def kill(self, role: str) -> None:
        """Kill the broker with a role; it is started again when all partitions have resumed without it."""
        node = self.find[role]()
        before, killed_s = self._before(), time.monotonic()
        self._cluster.brokers[node].kill()
        time.sleep(self._stage.rng.uniform(*_AWAY_S))  # The seed decides how long the broker is dead.
        is_over = self._await_flow()
        self._note(role, (node,), before, killed_s, None, is_over)
        self._cluster.brokers[node].start()
        self._cluster.await_in_sync()

    def restart(self, node: int) -> None:
        """Stop a broker in good order and start it again, as a rolling update of Kafka does."""
        before, stopped_s = self._before(), time.monotonic()
        self._cluster.brokers[node].stop()
        self._cluster.brokers[node].start()
        self._cluster.await_in_sync()
        self._note("restarted", (node,), before, stopped_s, None, self._await_flow())

    def kill_two(self) -> None:
        """Kill two brokers at once; the silence counts from the return of one, without which no partition resumes."""
        nodes = tuple(sorted(self._stage.rng.sample(sorted(self._cluster.brokers), 2)))
        before, killed_s = self._before(), time.monotonic()
        for node in nodes:
            self._cluster.brokers[node].kill()
        time.sleep(self._stage.rng.uniform(*_AWAY_S))  # The seed decides how long the brokers are dead.
        for node in nodes:
            self._cluster.brokers[node].begin()
        for node in nodes:
            self._cluster.brokers[node].await_ready()
        back_s = time.monotonic()
        is_over = self._await_flow()
        self._note("two at once, since back", nodes, before, killed_s, back_s, is_over)
        self._cluster.await_in_sync()

    def _before(self) -> tuple[int, int]:
        return len(self._crew.reasons), self._crew.count("local state wiped")

    def _await_flow(self) -> bool:
        """Wait until all partitions have made progress for a while; returns whether they did in time."""
        deadline_s = time.monotonic() + _PATIENCE_S
        flowing_s = time.monotonic()
        while time.monotonic() - flowing_s < _SETTLED_S:
            if self._silence.silent(self._delta):
                flowing_s = time.monotonic()
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.2)  # Between two polls; the observed state decides.
        return True

    def _note(
        self,
        role: str,
        nodes: tuple[int, ...],
        before: tuple[int, int],
        began_s: float,
        back_s: float | None,
        is_over: bool,
    ) -> None:
        silences = self._silence.longest_s(self._delta, began_s, after_s=back_s)
        partition = max(silences, key=silences.__getitem__)
        inputs = self._silence.longest_s(self._input, began_s, after_s=back_s)
        ended, wiped = (now - then for now, then in zip(self._before(), before, strict=True))
        outage = BrokerOutage(role, nodes, max(inputs.values()), silences[partition], partition, ended, wiped, is_over)
        self.outages.append(outage)
        self._stage.report(f"  {len(self.outages):>2} {outage.line}")


def kill_roles(stage: Stage, *, times: int, pairs: int) -> None:
    """Kill each role several times, then two at once, with the default time limits of Kafka and of the workers.

    Raises:
        Disturbed: a partition was silent for too long, a worker ended, or a state was wiped.
    """

    def all_kills(roles: Roles) -> None:
        for _ in range(times):
            for role in roles.find:
                roles.kill(role)
        for _ in range(pairs):
            roles.kill_two()

    _disturb(stage, all_kills)


def restart_all(stage: Stage, *, times: int) -> None:
    """Restart one broker after the other, several times over.

    Raises:
        Disturbed: a partition was silent for too long, a worker ended, or a state was wiped.
    """

    def all_restarts(roles: Roles) -> None:
        for _ in range(times):
            for node in (1, 2, 3):
                roles.restart(node)

    _disturb(stage, all_restarts)


def _disturb(stage: Stage, disturb: Callable[[Roles], None]) -> None:
    """Disturb a cluster of three brokers under load, and judge what became of the partitions and workers."""
    own = RuntimeConfig()
    cluster = stage.keep(Cluster(stage.directory, heap="768m", settings=_KAFKAS_OWN))
    limits = {"session_timeout_s": own.session_timeout_s, "transaction_timeout_s": own.transaction_timeout_s}
    world = stage.world(bootstrap=cluster.bootstrap, runtime=limits)
    topics = [f"{world.name}.publish", f"{world.name}.delta"]
    silence = Silence(cluster.bootstrap, topics, world.config.topics[world.name].partitions)
    with Crew(world, 2) as crew, silence:
        with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
            crew.wait(lambda: all(crew.has_logged("restored")), "partitions of both")
            crew.wait(lambda: not silence.silent(topics[1]), "deltas of every partition")
            roles = Roles(stage, cluster, world, crew, silence)
            disturb(roles)
            load.stop()
        crew.settle()
    stage.check(world)
    refuse(roles.outages, own.session_timeout_s + MARGIN_S, crew.reasons)


def refuse(outages: list[BrokerOutage], silence_max_s: float, reasons: list[str]) -> None:
    """Compare outages with the promised limits.

    Raises:
        Disturbed: an outage exceeded a limit.
    """
    wrong = [
        outage.line
        for outage in outages
        if outage.delta_s > silence_max_s or outage.ended or outage.wiped or not outage.is_over
    ]
    if wrong or reasons:
        details = "\n".join(wrong + reasons)
        raise Disturbed(
            f"{len(wrong)} of {len(outages)} outages broke the promise of {silence_max_s:g} s of silence, no worker "
            f"ended and no state wiped; {len(reasons)} workers ended\n{details}"
        )


SCENARIOS = [
    Scenario(
        "rolling-restarts",
        "three brokers stopped in good order and started again, one after the other, twice over: no partition silent "
        "for longer than the session and 15 s, no worker ends",
        600,
        partial(restart_all, times=2),
    ),
    Scenario(
        "each-role",
        "of three brokers kill -9 the group's and a transactions' coordinator, controller, SOW leader, two at once: "
        "no partition silent for longer than the session and 15 s, no worker ends",
        900,
        partial(kill_roles, times=1, pairs=1),
    ),
    Scenario(
        "forty-kills",
        "the same with each role killed 10 times, and two at once 3 times; only if asked for",
        5400,
        partial(kill_roles, times=10, pairs=3),
        is_extra=True,
    ),
]
