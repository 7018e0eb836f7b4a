"""Quiet subscriptions behind a proxy that ends idle connections."""

import shutil

import pytest

from tests.programs.gateway.idle import KINDS, run


@pytest.mark.long
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_quiet_subscriptions_live_behind_a_proxy_with_an_idle_limit():
    """WebSocket and Server-Sent Events, in Python and in Node, are not ended by a proxy while nothing changes."""
    # A busy machine may take seconds for the answer to a ping, without which a client connects again by itself.
    outcome = run(idle_s=12.0, seconds=14.0, silence_s=5.0)
    assert (outcome["reconnects"], outcome["got"]) == (0, sorted(KINDS))
