"""The input is the same for every program."""

from __future__ import annotations

from processor.tools.bench.load import messages


def test_the_input_hangs_on_the_seed_alone() -> None:
    """The same seed gives the same input, another seed another one."""
    assert list(messages(500, 50)) == list(messages(500, 50))
    assert list(messages(500, 50)) != list(messages(500, 50, seed=8))


def test_a_key_begins_with_a_whole_record() -> None:
    """The first record of a key is full; the smaller deltas after it contain the key."""
    seen = set()
    for key, body, is_delta in messages(500, 50):
        assert is_delta is (key in seen)
        assert is_delta is (len(body) < 9)
        assert body["id"] == key
        seen.add(key)
    assert len(seen) == 50
