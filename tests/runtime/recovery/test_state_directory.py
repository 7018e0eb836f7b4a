"""Tests of opening a state directory in any condition: logged in one line, counted, and usable afterwards."""

import os
import shutil
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import RuntimeConfig, TopicConfig
from processor.errors import DiskUnusable, StateLocked
from processor.hosting.pipeline import Pipeline
from processor.kafka.admin.questions import Question
from processor.kafka.outage import Renewal
from processor.record import Stored
from processor.runtime.recovery import state_directory
from processor.runtime.recovery.log_replay import SowReplay
from processor.runtime.recovery.state_directory import StateDirectory
from processor.store import layout
from processor.store.rocksdb_memory import RocksMemory

HOUR_MS = 3_600_000
NOBODY = 65534


class Topics:
    """Answers with the id of a topic, as Kafka does."""

    id = "first"

    def __init__(self) -> None:
        nothing = lambda: None  # noqa: E731
        self.renewal = Renewal(nothing, nothing)

    def recreate(self) -> None:
        """Recreate the topic, and let the last answer expire."""
        self.id = "second"
        time.sleep(state_directory._FRESH_S)

    def ask_topic(self, topic: str) -> Question[tuple[str, int]]:
        """Answer at once with the current id."""
        future: Future[tuple[str, int]] = Future()
        future.set_result((self.id, 1))
        return Question("looking at the topic", future, 1.0)


class Place:
    """A pipeline's state directory, with the log lines and counters of its opening."""

    def __init__(self, directory: Path, name: str) -> None:
        self.partition = directory / name / "0"
        self.topics = Topics()
        topic = TopicConfig()
        pipeline = Pipeline.of(DeltaMerge, topic, name=name, topic=topic)
        memory = RocksMemory(1 << 20)
        self.directory = StateDirectory(directory / name, pipeline, RuntimeConfig(), memory, self.topics)
        self.name = name

    def leave(self, count: int = 1000) -> None:
        """Leave a state with some records, closed properly."""
        state = self.directory.open(0)
        state.restore({b"%d" % n: Stored(1, os.urandom(50)) for n in range(count)}, count, HOUR_MS)
        state.close(HOUR_MS)

    def count(self, metric: str, **labels: str) -> float:
        """Read a counter."""
        return REGISTRY.get_sample_value(f"sowstream_{metric}_total", {"processor": self.name, **labels}) or 0

    def found(self) -> str:
        """Return the reported condition of the directory when it is opened; log line and counter must agree."""
        ways = ("new", "clean", "unclean", "format", "identity", "damaged")
        before = {way: self.count("state_opened", how=way) for way in ways}
        with capture_logs() as lines:
            state = self.directory.open(0)
        [found] = [way for way in ways if self.count("state_opened", how=way) > before[way]]
        ours = [line for line in lines if line.get("directory") == str(self.partition)]  # Other threads may log, too.
        assert [(line["found"], line["position"]) for line in ours] == [(found, state.position)]
        state.close(0)
        return found


@pytest.fixture
def place(tmp_path, request):
    """Create a directory with a name of its own, as counters belong to the process."""
    return Place(tmp_path, f"p{abs(hash(request.node.name))}")


def rewrite(file: Path, data: bytes) -> None:
    """Replace the content of a file."""
    file.unlink()
    file.write_bytes(data)


def instead(path: Path, what: str) -> None:
    """Put a file in place of a directory, or the other way round."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text(what)
    else:
        path.unlink()
        path.mkdir()


def rocksdb(place: Place) -> Path:
    """Return RocksDB's own directory."""
    return place.partition / layout.ROCKSDB_DIRECTORY


CALAMITIES = {
    "a file stands where the directory belongs": ("damaged", lambda place: instead(place.partition, "hello")),
    "a file stands where the database belongs": ("damaged", lambda place: instead(rocksdb(place), "hello")),
    "a directory stands where CURRENT belongs": ("damaged", lambda place: instead(rocksdb(place) / "CURRENT", "")),
    "CURRENT is garbage": ("damaged", lambda place: rewrite(rocksdb(place) / "CURRENT", b"\0\xff" * 50)),
    "the lock file is garbage": ("clean", lambda place: rewrite(place.partition / layout.LOCK_FILE, b"\0\xff" * 50)),
    "the lock file is gone": ("clean", lambda place: (place.partition / layout.LOCK_FILE).unlink()),
    "RocksDB's log is garbage": ("clean", lambda place: rewrite(rocksdb(place) / "LOG", b"\0\xff" * 50)),
    "the database is gone": ("new", lambda place: shutil.rmtree(rocksdb(place))),
    "everything is gone": ("new", lambda place: shutil.rmtree(place.partition)),
    "the topic was made anew": ("identity", lambda place: place.topics.recreate()),
}


@pytest.mark.parametrize(("found", "calamity"), CALAMITIES.values(), ids=CALAMITIES)
def test_the_condition_of_a_directory_is_logged_and_counted(place, found, calamity):
    """After any condition of the directory the state is usable."""
    assert place.found() == "new"
    place.leave()
    calamity(place)
    assert place.found() == found
    wiped = found if found in {"damaged", "identity"} else None
    assert place.count("state_wiped", reason=str(wiped)) == (wiped is not None)
    assert place.found() == "clean"


def test_the_state_of_another_partition_is_not_taken(place):
    """A state that was copied from another partition is replaced by an empty one."""
    place.leave()
    shutil.copytree(place.partition, place.partition.with_name("1"))
    other = place.directory.open(1)
    assert other.position == 0
    assert place.count("state_opened", how="identity") == 1
    other.close(0)


def test_damage_while_running_and_stale_states_are_counted(place):
    """Each wipe is counted with its reason."""
    state = place.directory.open(0)
    state.restore({b"a": Stored(1, b"x")}, 10, HOUR_MS)
    log = SowReplay("orders.sow", 0, state)
    log.target = 10
    assert "older than the topic's delete.retention.ms" in log.wipe_if_stale(HOUR_MS)
    state.restore({b"a": Stored(1, b"x")}, 11, HOUR_MS)
    assert "ahead of the SOW topic" in log.wipe_if_stale(HOUR_MS)
    state.wipe()
    assert {reason: place.count("state_wiped", reason=reason) for reason in ("too_old", "ahead", "damaged")} == {
        "too_old": 1,
        "ahead": 1,
        "damaged": 1,
    }
    state.close(0)


def test_a_directory_in_use_is_refused(place):
    """The error has the path and the remedy."""
    state = place.directory.open(0)
    with pytest.raises(StateLocked, match=f"{place.partition} is in use by another process; give each worker"):
        place.directory.open(0)
    state.close(0)


def test_a_database_in_use_is_refused_though_its_lock_file_was_deleted(place):
    """RocksDB's own lock keeps a state from being wiped while another process uses it."""
    state = place.directory.open(0)
    state.restore({b"a": Stored(1, b"x")}, 10, HOUR_MS)
    (place.partition / layout.LOCK_FILE).unlink()
    with pytest.raises(StateLocked, match=f"{place.partition} is in use"):
        place.directory.open(0)
    assert state.get_many([b"a"]) == {b"a": Stored(1, b"x")}
    state.close(0)


def test_a_file_in_the_way_of_the_whole_directory_stops_the_worker(place):
    """A foreign file in place of the directory is not removed."""
    place.partition.parent.write_text("a note")
    with pytest.raises(DiskUnusable, match=r"Not a directory.*move it away"):
        place.directory.open(0)
    assert place.partition.parent.read_text() == "a note"


@pytest.fixture
def common_users_place():
    """Create a directory as an unprivileged user; root changes to the user `nobody` meanwhile."""
    with tempfile.TemporaryDirectory() as directory:
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(directory, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield Place(Path(directory), "forbidden")
        finally:
            if is_root:
                os.seteuid(0)


@pytest.mark.parametrize("forbidden", ["", layout.ROCKSDB_DIRECTORY, layout.LOCK_FILE, "rocksdb/CURRENT"])
def test_a_directory_that_may_not_be_read_stops_the_worker(common_users_place, forbidden):
    """A state without read permission is not wiped, and usable once the permission is granted."""
    place = common_users_place
    place.leave()
    path = place.partition / forbidden
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with pytest.raises(DiskUnusable, match="let this user read and write there"):
            place.directory.open(0)
    finally:
        path.chmod(mode)
    assert place.found() == "clean"


def test_the_size_of_a_state_is_reported(place):
    """The size in bytes is reported by kind."""
    place.leave(20_000)
    state = place.directory.open(0)
    state.get_many([b"1"])
    state.put_many({b"1": Stored(2, bytes(1000))})
    state.prepare()
    state.commit(20_001)
    usage = state.usage()
    assert set(usage) == {"write_buffers", "table_readers", "disk", "unwritten", "known"}
    assert usage["disk"] > 20_000 * 50
    assert usage["unwritten"] > 1000
    assert REGISTRY.get_sample_value("sowstream_block_cache_bytes", {"kind": "capacity"}) == 1 << 20
    assert 0 < REGISTRY.get_sample_value("sowstream_block_cache_bytes", {"kind": "used"}) < 2 << 20
    state.close(0)
