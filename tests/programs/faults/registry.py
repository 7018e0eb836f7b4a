"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.programs.faults import bugs, input_gone, kills, pauses, rebalances, state_damage, versions, volume
from tests.programs.faults.broker import away, bounces, network, roles
from tests.programs.faults.clocks import jumps

SCENARIOS = [
    *bugs.SCENARIOS,
    *kills.SCENARIOS,
    *pauses.SCENARIOS,
    *rebalances.SCENARIOS,
    *state_damage.SCENARIOS,
    *input_gone.SCENARIOS,
    *volume.SCENARIOS,
    *versions.SCENARIOS,
    *bounces.SCENARIOS,
    *network.SCENARIOS,
    *roles.SCENARIOS,
    *away.SCENARIOS,
    *jumps.SCENARIOS,
]
