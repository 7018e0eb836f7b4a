"""A short run of `make fuzz`: the generator, the worker and the ledger, with a seed that is printed."""

import secrets

import pytest

from tests.fuzz.ledger import Ledger
from tests.fuzz.rubbish import commands
from tests.fuzz.run import run


@pytest.mark.broker
def test_every_record_of_a_rubbish_feed_is_accounted_for(bootstrap, tmp_path):
    """Merged, rejected with a reason, duplicate or nothing to do: nothing else, nothing twice, and no crash."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    outcome = run(bootstrap, tmp_path, records=20_000, seed=seed, say=print)
    assert outcome.wrong == []
    assert outcome.exit_code == 0
    assert outcome.inputs >= 20_000
    assert outcome.fates["merged"] > 5_000


def test_the_feed_of_a_seed_is_always_the_same():
    """A failure can be made again."""
    assert list(commands(7, 500)) == list(commands(7, 500))


def test_a_ledger_that_misses_a_record_says_so():
    """An input record that must leave a trace and has none is told by its place."""
    ledger = Ledger(inputs={"t.publish/0/1": "must", "t.publish/0/2": "rekeyed"})
    ledger.close({"rekeyed": 1})
    assert ledger.wrong == ["1 input records left no trace, such as t.publish/0/1"]
