"""A network that delays, loses and resets between workers and a broker: one API's requests or answers, or everything.

A request that its client has given up may still arrive. Kafka's older transaction protocol, which librdkafka speaks,
lets a late EndTxn end a later transaction (KAFKA-17754): the first scenarios look for that.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tests.programs.faults.broker.broker import Broker
from tests.programs.faults.broker.crew import Crew, through
from tests.programs.faults.broker.fault import Act, Api, Fault, Way
from tests.programs.faults.broker.proxy import Proxy
from tests.programs.faults.load import Load, commands
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = 20_000
_RECORDS_MAX = 1_000_000  # More records than a scenario has time for: the scenario ends the load itself.
_RECORDS_PER_S = 1_500
_SOCKET_TIMEOUT_S = 3.0  # librdkafka's default is a minute, too long for a scenario.
_MET_TIMEOUT_S = 120.0


class Harm(NamedTuple):
    """A fault for some frames of one API, injected repeatedly."""

    way: Way
    act: Act
    times: int
    """Number of injections."""
    delay_s: tuple[float, float] = (0.0, 0.0)
    """Range of the delay, from which the seed chooses."""


HARMS = {
    "late": Harm(Way.REQUEST, Act.LATE, 25, (0.01, 0.6)),
    "slow": Harm(Way.REQUEST, Act.DELAY, 4, (_SOCKET_TIMEOUT_S + 0.1, _SOCKET_TIMEOUT_S + 1.0)),
    "unanswered": Harm(Way.ANSWER, Act.LOSE, 4),
    "reset-before": Harm(Way.REQUEST, Act.RESET, 15),
    "reset-after": Harm(Way.ANSWER, Act.RESET, 15),
}
TARGETS = {"endtxn": Api.END_TXN, "offsets": Api.TXN_OFFSET_COMMIT, "produce": Api.PRODUCE}


def harm_requests(stage: Stage, api: Api, harm: Harm, broker: Broker | None = None) -> None:
    """Inject the fault into one request or answer after the other while records flow."""

    def do(proxy: Proxy, _crew: Crew) -> None:
        for _ in range(1 if stage.is_short else harm.times):
            time.sleep(stage.rng.uniform(0, 0.5))  # Some requests succeed in between.
            fault = proxy.inject(Fault(api, harm.way, harm.act, delay_s=stage.rng.uniform(*harm.delay_s)))
            assert fault.done.wait(_MET_TIMEOUT_S), f"no {api.name} came by in {_MET_TIMEOUT_S:g} s"
        proxy.clear()

    play(stage, do, broker=broker)


def play(stage: Stage, do: Callable[[Proxy, Crew], None], *, workers: int = 1, broker: Broker | None = None) -> Crew:
    """Let workers merge through a proxy that injects faults; then account for every record."""
    broker = broker or stage.keep(Broker(stage.directory / "broker"))
    proxy = stage.keep(Proxy(broker.proxied_port, broker.target_port))
    world = stage.world(bootstrap=broker.bootstrap)
    through(world, broker.proxied_bootstrap, **{"socket.timeout.ms": int(_SOCKET_TIMEOUT_S * 1000)})
    with Crew(world, workers) as crew:
        with Load(world, commands(stage.seed, _RECORDS_MAX, _KEYS), _RECORDS_PER_S) as load:
            crew.await_event("restored")
            do(proxy, crew)
            load.stop()
        crew.settle()
        rolled_back = crew.count("transaction rolled back")
        stage.report(
            f"  {proxy.requests[Api.END_TXN]} EndTxn, {rolled_back} rolled back, ended {len(crew.reasons)} times"
        )
    stage.check(world)
    return crew


def harm_starts_too(stage: Stage) -> None:
    """Delay commits, and reset the connection while the producer that is to fence them starts.

    librdkafka reports the second of two such resets only if half a minute lies between them.
    """
    harm = HARMS["late"]

    def do(proxy: Proxy, _crew: Crew) -> None:
        for _ in range(harm.times):
            proxy.inject(Fault(Api.INIT_PRODUCER_ID, Way.ANSWER, Act.RESET))
            late = Fault(Api.END_TXN, harm.way, harm.act, delay_s=stage.rng.uniform(*harm.delay_s))
            assert proxy.inject(late).done.wait(_MET_TIMEOUT_S), f"no EndTxn came by in {_MET_TIMEOUT_S:g} s"
            time.sleep(stage.rng.uniform(0, 0.5))  # Some requests succeed in between.
        proxy.clear()

    play(stage, do)


def reset_everything(stage: Stage) -> None:
    """Reset all connections at once, every few seconds."""

    def do(proxy: Proxy, _crew: Crew) -> None:
        for _ in range(20):
            time.sleep(stage.rng.uniform(0.2, 3))  # The seed decides at which moment of their work.
            proxy.reset()

    play(stage, do, workers=2)


def be_away(stage: Stage, leave: Callable[[Proxy], None], back: Callable[[Proxy], None]) -> None:
    """Keep the broker unreachable for a minute; a worker that ends logs the reason, and is started again."""

    def do(proxy: Proxy, crew: Crew) -> None:
        before = crew.count("restored")
        leave(proxy)
        time.sleep(60)  # The outage must last a minute.
        back(proxy)
        # A worker restores only if it has lost a transaction, or ended, because of the outage.
        crew.wait(lambda: crew.count("restored") > before, "noticing, and coming back")

    crew = play(stage, do, workers=2)
    for reason in crew.reasons:
        stage.report(f"  a worker ended: {reason}")
        assert "Kafka" in reason, f"a worker ended without saying that Kafka was away: {reason}"


def be_slow(stage: Stage) -> None:
    """Delay every frame by 200 ms in each direction."""

    def do(proxy: Proxy, _crew: Crew) -> None:
        proxy.delay_s = 0.2
        time.sleep(20)  # Under load.

    play(stage, do, workers=2)


def swallow_offsets(stage: Stage) -> None:
    """Let the group's coordinator accept connections and never answer, for longer than a transaction may last.

    librdkafka's `send_offsets_to_transaction` ignores its own time limit then (its issue 5456).
    """

    def do(proxy: Proxy, crew: Crew) -> None:
        for way in Way:
            before = crew.count("transaction rolled back")
            proxy.inject(Fault(Api.TXN_OFFSET_COMMIT, way, Act.LOSE, times=1_000_000))
            crew.wait(lambda before=before: crew.count("transaction rolled back") > before, "giving up")
            proxy.clear()
            time.sleep(3)  # Some requests succeed in between.

    play(stage, do)


_WORDS = {
    "late": "arrive after the client was reset and has asked again, 25 times",
    "slow": "arrive after the client's time limit, 4 times",
    "unanswered": "are not answered, 4 times",
    "reset-before": "are lost with their connection, 15 times",
    "reset-after": "lose their answer with their connection, 15 times",
}

SCENARIOS = [
    *(
        Scenario(
            f"{target}-{name}",
            f"{api.name.replace('_', ' ').title().replace(' ', '')} requests {_WORDS[name]}",
            200,
            partial(harm_requests, api=api, harm=harm),
        )
        for target, api in TARGETS.items()
        for name, harm in HARMS.items()
    ),
    Scenario(
        "endtxn-late-restart",
        "EndTxn requests arrive late, and the new producer's start is reset once, 25 times",
        200,
        harm_starts_too,
    ),
    Scenario("offsets-swallowed", "no offset commit, and then no answer to one, gets through", 200, swallow_offsets),
    Scenario("reset-all", "all connections reset, 20 times every 0.2 to 3 s", 200, reset_everything),
    Scenario(
        "black-hole",
        "nothing passes to or from the broker for a minute, and then what was held does",
        300,
        partial(be_away, leave=Proxy.stall, back=Proxy.flow),
    ),
    Scenario(
        "refused",
        "the broker's port takes no connection for a minute",
        300,
        partial(be_away, leave=Proxy.refuse, back=Proxy.admit),
    ),
    Scenario("slow-network", "200 ms each way, for 20 s", 200, be_slow),
]
