from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import ConfigurationError
from spark_integration.foundation.small_files import LocalFiles
from spark_integration.pipeline.driver_claim import FILE, DriverClaim, holder_of, kept_alive
from spark_integration.pipeline.job_status import job_status

ELSEWHERE = {"host": "node-7", "machine": "another", "process": 42}


@pytest.fixture
def files(tmp_path):
    """The files of a checkpoint."""
    return LocalFiles(tmp_path)


def _taken(files, **changes):
    """A claim that is held, and looks as if by another process where `changes` have its place."""
    claim = DriverClaim("book", files)
    assert claim.take() is None
    claim.settle()
    claim.note("running")
    if changes:
        _change(files, **changes)
    return claim


def _change(files, **changes) -> None:
    files.write(FILE, json.dumps(asdict(replace(holder_of(files), **changes))))


def test_a_second_driver_is_refused_while_the_first_lives(files) -> None:
    """The error has the job, and the host, the process and the start of the first one, also while that is idle."""
    first = _taken(files)
    with pytest.raises(ConfigurationError, match=r"book: another driver runs this job: process \d+ on .*, since 20..-"):
        DriverClaim("book", files).take()
    first.release()
    assert DriverClaim("book", files).take() is None, "a claim that was given back is free"


def test_the_claim_of_a_dead_process_of_this_machine_is_free_at_once(files) -> None:
    """A process that has ended, and another one that has its id since, hold nothing."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    _taken(files, process=ended.pid)
    assert job_status("book", "table", files, None).state == "gone"
    assert DriverClaim("book", files).take() is None
    _change(files, is_released=True)
    _taken(files, started="1")
    assert DriverClaim("book", files).take() is None


def test_a_driver_elsewhere_is_alive_as_long_as_its_file_changes(files) -> None:
    """Its signs of life within the lease decide, and no clock of a host."""
    _taken(files, at=1.0, **ELSEWHERE)
    second = DriverClaim("book", files)
    holder = second.take()
    assert (holder.host, holder.process) == ("node-7", 42)
    _change(files, beat=holder.beat + 1)
    with pytest.raises(ConfigurationError, match="process 42 on node-7"):
        second.take()
    assert DriverClaim("book", files, lease_s=0.0).take() is None, "silent for the lease"


def test_of_two_takers_one_goes_on_and_a_holder_notices_its_loss(files) -> None:
    """The last one to write has the claim; the other is refused, and one that held it before learns so by its beat."""
    before = _taken(files)
    _change(files, is_released=True)
    one, other = DriverClaim("book", files), DriverClaim("book", files)
    assert one.take() is None
    _change(files, is_released=True)
    assert other.take() is None
    with pytest.raises(ConfigurationError, match="another process has just taken this job"):
        one.settle()
    other.settle()
    before.renew()
    assert "another process has taken this job" in before.lost


def test_a_claim_is_kept_alive_and_a_file_that_cannot_be_written_loses_it(files, tmp_path) -> None:
    """Signs of life come by themselves; after a lease without one the claim is lost, as another process may have it."""
    claim = _taken(files)
    with kept_alive([claim], beat_s=0.01):
        first = holder_of(files).beat
        while holder_of(files).beat < first + 3:
            assert not claim.lost
    claim._lease_s = 0.0
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    claim.renew()
    assert "cannot be written" in claim.lost


def test_a_damaged_claim_is_refused(files) -> None:
    """A file that is no claim may be that of a living driver: the job does not start."""
    files.write(FILE, "{")
    with pytest.raises(ConfigurationError, match=r"is damaged.*remove it once no other process runs this job"):
        DriverClaim("book", files).take()
