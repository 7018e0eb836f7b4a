"""State directories of every release are opened and read, and none is wiped without a line in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from rocksdict import Options, Rdict
from structlog.testing import capture_logs

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.client.feeds.stored_view import StoredView
from processor.config import RuntimeConfig
from processor.hosting.pipeline import Pipeline
from processor.runtime.recovery.state_directory import StateDirectory
from processor.store import layout
from processor.store.contract import Progress
from processor.store.rocksdb import RocksMemory, RocksStore
from tests.golden.golden_files import VERSIONS, golden_topic, packed
from tests.golden.states import APPLIED_AT_MS, MEMORY_BYTES, TOPIC_ID, rows, unpack
from tests.golden.topics import ORDERS
from tests.runtime.recovery.test_state_directory import Topics

pytestmark = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def state(version: str, tmp_path: Path) -> Path:
    """The state directory of a partition, as a worker of the release left it."""
    unpack(packed(version, "state"), tmp_path / "orders")
    return tmp_path / "orders" / "0"


@pytest.fixture
def view(version: str, tmp_path: Path) -> Path:
    """The directory of a kept view, as a client of the release left it."""
    unpack(packed(version, "kept-view"), tmp_path / "view")
    return tmp_path / "view"


def opened(directory: Path) -> RocksStore:
    """Open the state of a partition."""
    return RocksStore(directory, identity=f"orders.sow/0/{TOPIC_ID}", memory=RocksMemory(MEMORY_BYTES))


def test_the_state_of_the_release_is_read(version: str, state: Path) -> None:
    """The state is clean, and has each record of the SOW topic, its expiry and the position of the release."""
    expected = rows(golden_topic(version, "orders.sow"))
    store = opened(state)
    assert store.initial_content == "clean"
    assert dict(store.scan()) == expected
    assert store.progress() == Progress(14, APPLIED_AT_MS)
    due = sorted((stored.expires_at_ms, key) for key, stored in expected.items())
    assert store.expiring(None, 10) == due
    store.close()


def worker_opens(state: Path) -> list[dict[str, object]]:
    """Open the directory as a worker does, and return its log lines."""
    topics = Topics()
    topics.id = TOPIC_ID
    pipeline = Pipeline.of(DeltaMerge, ORDERS, name="orders", topic=ORDERS)
    directory = StateDirectory(state.parent, pipeline, RuntimeConfig(), RocksMemory(MEMORY_BYTES), topics)  # type: ignore[arg-type]
    with capture_logs() as lines:
        opened_state = directory.open(0)
    opened_state.close(APPLIED_AT_MS)
    return [dict(line) for line in lines]


def test_a_worker_goes_on_with_the_state_of_the_release(version: str, state: Path) -> None:
    """A worker opens the directory as its own, at the position of the release."""
    [line] = worker_opens(state)
    assert (line["event"], line["found"], line["position"]) == ("local state opened", "clean", 14)


@pytest.mark.parametrize("mark", [layout.FORMAT_KEY, layout.IDENTITY_KEY])
def test_a_state_is_not_wiped_without_a_line_in_the_log(version: str, state: Path, mark: bytes) -> None:
    """A state of another format or topic is wiped, and the log has a warning with the directory and the reason."""
    database = Rdict(str(state / layout.ROCKSDB_DIRECTORY), Options(raw_mode=True))
    database[mark] = b"3"
    database.close()
    [line] = worker_opens(state)
    assert (line["log_level"], line["directory"], line["position"]) == ("warning", str(state), 0)
    assert line["found"] == ("format" if mark == layout.FORMAT_KEY else "identity")
    assert "restoring it from the SOW topic" in str(line["event"])


def test_a_kept_view_of_the_release_is_read(version: str, view: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A kept view has each record with its headers, and goes on at the position of the release; nothing is logged."""
    last = {record.key: record for record in golden_topic(version, "orders.sow")}
    kept = StoredView(view, "orders.sow", TOPIC_ID, 1, keeps=True)
    assert kept.positions == {0: 14}
    records = {record.key: record for record in kept.scan()}
    assert records.keys() == {key for key, record in last.items() if record.value is not None}
    for key, record in records.items():
        assert (record.value, record.offset) == (last[key].value, last[key].offset)
        others = [header for header in last[key].headers or () if header[0] != "kind"]
        assert sorted(record.headers or ()) == sorted(others)
    kept.close()
    assert caplog.records == []


def test_a_kept_view_is_not_wiped_without_a_line_in_the_log(
    version: str, view: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kept view of another topic is filled again, and the log has a warning with the directory."""
    with caplog.at_level(logging.WARNING, "sowstream.client"):
        kept = StoredView(view, "orders.sow", "another", 1, keeps=True)
    assert kept.positions == {0: 0}
    kept.close()
    [line] = caplog.records
    assert str(view / "0") in line.getMessage()
    assert "is filled again" in line.getMessage()
