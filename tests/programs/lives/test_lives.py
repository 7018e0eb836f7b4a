"""A short run of random lives, and the faults that its check must find; `make program NAME=lives` runs it at length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.endtoend.oracle import Seen
from tests.programs.lives.checks import repeated_versions
from tests.programs.lives.locks import run_locks, touched
from tests.programs.lives.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path


def seen(*versions: int, value: bytes = b"{}") -> list[Seen]:
    """Records of one key with these versions."""
    return [Seen(0, offset, b"7", value, {"version": str(version)}) for offset, version in enumerate(versions)]


def test_growing_versions_are_right():
    """Versions may jump, and another partition has its own."""
    assert repeated_versions([*seen(1, 2, 9), *[one._replace(partition=1) for one in seen(1)]]) == []


@pytest.mark.parametrize("versions", [(1, 2, 1), (1, 2, 2), (5, 3)])
def test_a_version_that_comes_twice_or_falls_is_found(versions: tuple[int, ...]):
    """Each of these is named with its key and offset."""
    assert "b'7' has version" in repeated_versions(seen(*versions))[0]


def test_a_record_may_come_again_as_it_was_where_that_is_allowed():
    """An equal record is no second one; another one with its version is."""
    assert repeated_versions(seen(1, 2, 1, 2), may_repeat=True) == []
    assert repeated_versions([*seen(1), *seen(1, value=b"[]")], may_repeat=True) != []


def test_a_life_may_go_on_after_an_end_by_the_clock_where_that_is_allowed():
    """The end alone may be followed by another record with its version, and not a record by an end."""
    [end] = [one._replace(headers=one.headers | {"kind": "expire"}) for one in seen(1)]
    [update] = seen(1, value=b"[]")
    assert repeated_versions([end, update], may_repeat=True, may_expire_in_vain=True) == []
    assert repeated_versions([end, update], may_repeat=True) != []
    assert repeated_versions([update, end], may_repeat=True, may_expire_in_vain=True) != []


@pytest.mark.broker
@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_no_version_comes_twice_while_workers_are_killed(
    guarantee: str, bootstrap: str, tmp_path: Path, unique: str, random_seed: int
) -> None:
    """Two thousand lives of forty keys, a third of which expire, under a kill."""
    plan = Plan(random_seed, lives=2_000, keys=40, kills=1, guarantee=guarantee)
    outcome = run(plan, bootstrap, tmp_path, unique, print)
    print(outcome)
    assert outcome.wrong == []


def test_a_release_of_another_clients_lock_is_found():
    """A delete by another client than the owner is named."""
    taken = Seen(0, 0, b"l", b'{"owner":"a"}', {"version": "1", "kind": "insert"})
    release = Seen(0, 1, b"l", b"{}", {"version": "2", "kind": "delete", "by": "b"})
    assert touched([taken, release._replace(headers=release.headers | {"by": "a"})]) == []
    assert touched([taken, release]) == ["b'l' of a was released by b"]


@pytest.mark.broker
@pytest.mark.long
def test_no_lock_of_another_client_is_touched(bootstrap: str, tmp_path: Path, unique: str, random_seed: int) -> None:
    """Fifty clients take ten locks and often release them after their lease, while a worker is killed."""
    outcome = run_locks(bootstrap, tmp_path, unique, clients=50, rounds=8, locks=10, seed=random_seed)
    print(outcome)
    assert outcome.wrong == []
    assert outcome.released > 0
    assert outcome.refused > 0
