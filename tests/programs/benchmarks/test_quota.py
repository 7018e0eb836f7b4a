"""A held process gets its part of a core and no more, and nothing is left of the group that held it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from processor.tools.bench.programs import cpu_s
from tests.programs.benchmarks import quota

pytestmark = pytest.mark.skipif(not quota.can_hold(), reason="may not make control groups for processors")


@contextmanager
def spinning() -> Iterator[psutil.Process]:
    """A process that would take a whole core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def groups_of(*processes: psutil.Process) -> list[Path]:
    """Those that hold these processes; other tests may have made some, too."""
    mine = {str(process.pid) for process in processes}
    found = quota._found().root.glob("sowstream-bench-*")
    return [group for group in found if mine & set((group / "cgroup.procs").read_text().split())]


def test_each_process_has_its_own_part():
    """Two in one group would share one part."""
    with spinning() as one, spinning() as other, quota.held([one.pid, other.pid], 0.2):
        held = groups_of(one, other)
        assert len(held) == 2
        before, began_s = [cpu_s(one), cpu_s(other)], time.monotonic()
        while time.monotonic() - began_s < 1.0:
            time.sleep(0.1)
        used = [cpu_s(process) - had for process, had in zip((one, other), before, strict=True)]
    assert all(seconds <= 0.5 for seconds in used), used
    assert not any(group.exists() for group in held)


def test_a_process_may_end_while_it_is_held():
    """The group goes with it."""
    with spinning() as process, quota.held([process.pid], 0.5):
        (held,) = groups_of(process)
        process.kill()
        process.wait(10)
    assert not held.exists()


def test_what_is_held_is_free_afterwards():
    """It is where all are again."""
    with spinning() as process:
        with quota.held([process.pid], 0.1):
            assert groups_of(process)
        assert not groups_of(process)
        assert str(process.pid) in (quota._found().root / "cgroup.procs").read_text().split()


def test_a_process_that_is_not_there_is_an_error():
    """And the others are let go."""
    with spinning() as gone:
        gone.kill()
        gone.wait(10)
    with spinning() as other:
        with pytest.raises(OSError), quota.held([other.pid, gone.pid], 0.5):  # noqa: PT011 - the system's own words
            pass
        assert not groups_of(other)
