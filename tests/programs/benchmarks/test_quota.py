"""A limited process gets its part of a core and no more, and its group is removed afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from processor.trial.bench.programs import cpu_s
from tests.programs.benchmarks import quota

pytestmark = pytest.mark.skipif(not quota.can_hold(), reason="may not make control groups for processors")


@contextmanager
def spinning() -> Iterator[psutil.Process]:
    """A process that uses a full core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def groups_of(*processes: psutil.Process) -> list[Path]:
    """The groups that limit these processes; other tests may have made some, too."""
    mine = {str(process.pid) for process in processes}
    groups = quota._mounted_groups().root.glob("sowstream-bench-*")
    return [group for group in groups if mine & set((group / "cgroup.procs").read_text().split())]


def test_each_process_has_its_own_part():
    """Each of two processes has a part of its own: in one group they would share one."""
    with spinning() as one, spinning() as other, quota.held([one.pid, other.pid], 0.2):
        held = groups_of(one, other)
        assert len(held) == 2
        before, began_s = [cpu_s(one), cpu_s(other)], time.monotonic()
        while time.monotonic() - began_s < 1.0:
            time.sleep(0.1)
        used = [cpu_s(process) - had for process, had in zip((one, other), before, strict=True)]
        seconds = time.monotonic() - began_s
    assert all(each <= 0.3 * seconds + 0.2 for each in used), (used, seconds)
    assert not any(group.exists() for group in held)


def test_a_process_may_end_while_it_is_held():
    """The group of a process that ends while it is limited is removed."""
    with spinning() as process, quota.held([process.pid], 0.5):
        (held,) = groups_of(process)
        process.kill()
        process.wait(10)
    assert not held.exists()


def test_a_process_is_released_after_the_block():
    """A process returns to the group of all processes after the block."""
    with spinning() as process:
        with quota.held([process.pid], 0.1):
            assert groups_of(process)
        assert not groups_of(process)
        assert str(process.pid) in (quota._mounted_groups().root / "cgroup.procs").read_text().split()


def test_a_process_that_is_not_there_is_an_error():
    """A process that does not exist is an error, and the other processes are released."""
    with spinning() as gone:
        gone.kill()
        gone.wait(10)
    with spinning() as other:
        with pytest.raises(OSError), quota.held([other.pid, gone.pid], 0.5):  # noqa: PT011 - the system's own words
            pass
        assert not groups_of(other)
