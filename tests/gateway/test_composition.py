"""The law of composition, outages and quiet connections: short runs of programs.gateway, and their whole length."""

import shutil

import pytest

from tests.programs.gateway import idle, outages
from tests.programs.gateway.composition import run

NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
ENDS = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""A gateway that ends in an outage drops a connection that asyncio has accepted and not yet begun to serve."""
CLIENTS = [
    pytest.param(outages.PythonClient, id="python"),
    pytest.param(outages.in_node, id="node", marks=NEEDS_NODE),
]


def test_a_client_holds_the_answer_of_its_query_at_its_bookmark(random_seed):
    """After random updates, breaks, restarts and slow reads each client holds its query's answer at its bookmark."""
    world = run(2_000, random_seed)
    assert world.checks > 300
    assert world.resumes > 10
    assert world.refetches > 10
    assert world.replaces > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_client_holds_the_answer_in_a_long_run(random_seed, steps):
    """The same for many more random steps, 100,000 at full length (spec gateway.md, rule 6)."""
    world = run(steps(100_000), random_seed)
    assert world.checks > steps(30_000)
    assert world.early > steps(30), "windows begin before all of their order is there"


@ENDS
@pytest.mark.parametrize("connect", CLIENTS)
def test_a_client_is_right_after_outages(random_seed, connect):
    """After lost connections, late views, expired tokens and restarts each view is its query at its bookmark."""
    made = outages.run(300, random_seed, connect)
    assert made.checks > 30
    assert made.compared > 5


@pytest.mark.long
@pytest.mark.timeout(3600)
@ENDS
@pytest.mark.parametrize("connect", CLIENTS)
def test_a_client_is_right_in_a_long_run_with_outages(random_seed, connect, steps):
    """The same for many more random steps, 20,000 at full length."""
    assert outages.run(steps(20_000), random_seed, connect).compared > steps(500)


@pytest.mark.long
@NEEDS_NODE
def test_quiet_subscriptions_live_behind_a_proxy_with_an_idle_limit():
    """WebSocket and Server-Sent Events, in Python and in Node, are not ended by a proxy while nothing changes."""
    # A busy machine may take seconds for the answer to a ping, without which a client connects again by itself.
    outcome = idle.run(idle_s=12.0, seconds=14.0, silence_s=5.0)
    assert (outcome["reconnects"], outcome["got"]) == (0, sorted(idle.KINDS))
