"""Tests of forks: a client of the parent refuses its calls in a child, and a client of the child works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.family import Family

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork"),
]


def run(case: str, family: Family, directory: Path) -> list[str]:
    """The lines that a case of the program prints; it must end well, and within its limit."""
    bootstrap = family.config.kafka["bootstrap.servers"]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.client.forking"]
    done = subprocess.run(
        [*command, case, bootstrap, family.name, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_each_call_of_an_inherited_object_is_refused_and_the_parent_goes_on(family: Family, tmp_path: Path) -> None:
    """In a fork each call of a client, stream, view, queue, message or future raises, and `close` does nothing."""
    assert run("calls", family, tmp_path) == ["child 3", "parent [None] group_begin []"]


def test_a_client_of_a_fork_works_whatever_clients_its_parent_has(family: Family, tmp_path: Path) -> None:
    """A client that is created in a fork works; the fork frees its parent's clients, and ends with its own status."""
    assert run("own_client", family, tmp_path) == ["child group_begin group_end", "child 3"]


def test_process_pools_need_a_client_of_their_own(family: Family, tmp_path: Path) -> None:
    """With each start method a task creates a client of its own; passing a client raises an error that says so."""
    lines = run("pools", family, tmp_path)
    assert lines[::3] == [f"{method} group_begin group_end" for method in ("fork", "forkserver", "spawn")]
    for noun, line in zip(("client", "subscription") * 3, (each for each in lines if "cannot" in each), strict=True):
        assert f"a {noun} cannot be pickled" in line
        assert "create a Client in each process" in line
