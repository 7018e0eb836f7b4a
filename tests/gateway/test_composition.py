"""The law of composition: a short run of tests.programs.gateway.composition, and its whole length."""

import pytest

from tests.programs.gateway.composition import run


def test_a_client_holds_the_answer_of_its_query_at_its_bookmark(random_seed):
    """After random updates, breaks, restarts and slow reads each client holds its query's answer at its bookmark."""
    world = run(2_000, random_seed)
    assert world.checks > 300
    assert world.resumes > 10
    assert world.refetches > 10
    assert world.replaces > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_client_holds_the_answer_for_a_hundred_thousand_steps(random_seed):
    """The same for 100,000 random steps (spec gateway.md, rule 6)."""
    world = run(100_000, random_seed)
    assert world.checks > 30_000
    assert world.early > 30, "windows begin before all of their order is there"
