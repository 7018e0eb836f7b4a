"""Tests of the identity of a worker process: unique on its machine, the same after a restart, and without rivals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from processor.errors import Stop
from processor.runtime.worker import worker_identity
from processor.runtime.worker.worker_identity import ProcessSlot, RivalWatch, WorkerMember, rivals

if TYPE_CHECKING:
    from collections.abc import Sequence


HOLDER = """
import sys
from pathlib import Path
from processor.runtime.worker.worker_identity import ProcessSlot

held = ProcessSlot(Path(sys.argv[1]))
print(held.number, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def take(tmp_path):
    """Take a slot of `tmp_path` or another directory; slots that a test keeps are released at its end."""
    taken: list[ProcessSlot] = []

    def take_slot(directory: Path = tmp_path) -> ProcessSlot:
        taken.append(ProcessSlot(directory))
        return taken[-1]

    yield take_slot
    for held in taken:
        held.release()


def test_each_worker_has_a_number_of_its_own(take):
    """A worker gets the first free number; a released number goes to the next worker."""
    slots = [take() for _ in range(3)]
    assert [held.number for held in slots] == [0, 1, 2]
    slots[1].release()
    assert take().number == 1


def test_workers_of_other_directories_do_not_count(take, tmp_path):
    """Each state directory numbers its slots from 0, and has transactional ids of its own."""
    slots = [take(tmp_path / name) for name in "ab"]
    assert [held.number for held in slots] == [0, 0]
    assert slots[0].name != slots[1].name


def test_the_same_directory_gives_the_same_name(take, tmp_path, monkeypatch):
    """The name does not depend on the spelling of the path: a restarted worker ends its own open transaction."""
    held = take(tmp_path / "state")
    held.release()
    monkeypatch.chdir(tmp_path)
    assert take(Path("state")).name == held.name


def test_a_killed_workers_number_is_free_again(take, tmp_path):
    """The next worker gets the same transactional id, and ends the open transaction of the killed one."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "0\n"
            identity, pid = (tmp_path / "slots" / "0").read_text().split()
            assert (len(identity), pid) == (32, str(process.pid))
            assert take().number == 1
        finally:
            process.kill()
    assert take().number == 0


@pytest.mark.parametrize("host", ["worker-2", "straße.example", "a" * 300])
def test_the_name_is_fit_for_a_transactional_id(take, monkeypatch, host):
    """The name has only characters that Kafka allows: host, checksum of the directory, number and UUID."""
    monkeypatch.setattr(worker_identity.socket, "gethostname", lambda: host)
    name = take().name
    assert re.fullmatch(r"[a-zA-Z0-9._-]{1,60}-[0-9a-f]{8}-0-[0-9a-f]{32}", name)
    assert name[:5] in host or host.startswith("stra")


def test_two_installations_with_the_same_names_have_different_identities(take, tmp_path, monkeypatch):
    """Pods of one release name in two namespaces have equal host names and paths, each on its own volume."""
    first = take(tmp_path / "state")
    first.release()
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    second = take(tmp_path / "state")
    assert first.name != second.name
    assert first.name.rpartition("-")[0] == second.name.rpartition("-")[0]


@pytest.mark.parametrize("left", ["", "4711", "0123"])
def test_a_slot_file_of_an_older_version_or_a_torn_one_gets_an_identity(take, tmp_path, left):
    """A file without a valid UUID gets one, which is kept from then on."""
    (tmp_path / "slots").mkdir()
    (tmp_path / "slots" / "0").write_text(left)
    held = take()
    held.release()
    assert take().name == held.name


def test_a_directory_that_cannot_be_used_stops_the_worker(tmp_path):
    """The error names the setting to change."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Stop, match=rf"state_dir {tmp_path / 'file'}: Not a directory; choose a directory"):
        ProcessSlot(tmp_path / "file")


def test_the_number_of_slots_is_limited(take, monkeypatch):
    """The error reports that all slots are taken."""
    monkeypatch.setattr(worker_identity, "_SLOTS_MAX", 2)
    assert [take().number for _ in range(2)] == [0, 1]
    with pytest.raises(Stop, match="all 2 slots are taken"):
        take()


A, B = "a" * 32, "b" * 32


def member(place: str, identity: str, host: str = "/10.0.0.1") -> WorkerMember:
    """Create a worker with the name of its slot."""
    return WorkerMember(f"{place}-{identity}", host)


@pytest.fixture
def watch() -> RivalWatch:
    """Create a watch without connection."""
    return RivalWatch(cast("Any", None), [], session_timeout_s=45)


def warnings(watch: RivalWatch, *looks: Sequence[WorkerMember]) -> list[list[str]]:
    """Return the members in each warning that a series of looks causes."""
    with capture_logs() as logs:
        for look in looks:
            watch.look("desk.orders", look)
    return [entry["members"] for entry in logs]


@pytest.mark.parametrize(
    "found",
    [
        [member("desk-worker-0-92fcefee-0", A), member("desk-worker-1-92fcefee-0", B)],
        [member("desk-worker-0-92fcefee-0", A), member("desk-worker-0-92fcefee-1", B)],
        [member("desk-worker-0-92fcefee-0", A), member("desk-worker-0-00000000-0", B)],
        [member("desk-worker-0-92fcefee-0", A), member("desk-worker-0-92fcefee-0", A)],
        [WorkerMember("rdkafka", "/10.0.0.1"), WorkerMember("rdkafka", "/10.0.0.2")],
    ],
    ids=["hosts", "processes", "directories", "one process joining again", "client ids of the settings"],
)
def test_workers_of_one_installation_are_no_rivals(found):
    """Scaled pods, several processes, several directories and a user's own client ids are no rivals."""
    assert rivals(found) == {}


def test_workers_of_two_namespaces_are_rivals(watch):
    """They are logged once, with the address of each."""
    pair = [member("desk-worker-0-92fcefee-0", A), member("desk-worker-0-92fcefee-0", B, "/10.1.0.9")]
    assert warnings(watch, pair, pair, pair) == [[f"{one.client_id} at {one.host}" for one in pair]]


def test_a_successor_whose_directory_was_lost_is_no_rival(watch):
    """The dead member leaves the group before the next look."""
    dead, successor = member("desk-worker-0-92fcefee-0", A), member("desk-worker-0-92fcefee-0", B)
    assert warnings(watch, [dead, successor], [successor], [successor]) == []
    assert watch.pause_s > 45
