"""Tests of the detection of two installations in one consumer group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from processor.runtime.watching.rivals import RivalWatch, WorkerMember, rivals

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B = "a" * 32, "b" * 32


def member(place: str, identity: str, host: str = "/10.0.0.1") -> WorkerMember:
    """Create a worker with the name of its slot."""
    return WorkerMember(f"{place}-{identity}", host)


@pytest.fixture
def watch() -> RivalWatch:
    """Create a watch without connection."""
    return RivalWatch(cast("Any", None), [], stop=threading.Event(), session_timeout_s=45)


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
    assert watch._pause_s > 45
