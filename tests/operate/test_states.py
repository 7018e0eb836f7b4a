"""`sowstream state`: looks into the states of stopped workers, and finds each kind of fault."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from processor.cli.main import run
from processor.config import load
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.record import Stored
from processor.store import layout
from processor.store.contract import Progress
from processor.store.inspection import StateReader
from processor.store.rocksdb import RocksStore
from processor.store.rocksdb_memory import RocksMemory

if TYPE_CHECKING:
    from pathlib import Path

FIRST = Stored(3, b'{"id":1,"note":"caf\\u00e9"}', 0, 41)
SECOND = Stored(1, b'{"id":2}', 2_000_000_000_000, -1, b"60")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose settings have one topic; it is the current one."""
    (tmp_path / "sowstream.yaml").write_text("topics: {orders: {partitions: 2}}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(
    directory: Path, changes: dict[bytes, Stored | None], progress: Progress, identity: str = "orders.sow/0/abc"
) -> RocksStore:
    """Write a state of partition 0; the returned store is open."""
    place = directory / "state" / "sowstream" / "orders" / "0"
    store = RocksStore(place, identity=identity, memory=RocksMemory(1 << 20))
    store.apply(changes, progress)
    return store


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    """Run a command; return its exit code, its lines of JSON, and the text for people."""
    code = run(["state", *arguments])
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_a_state_is_shown_in_figures(directory: Path, capsys: pytest.CaptureFixture[str]):
    """A line has the place, the marks, and the numbers of records and bytes; files keep their content."""
    write(directory, {b"1": FIRST, b"2": SECOND}, Progress(77, 1_700_000_000_000)).close()
    files = {file: file.read_bytes() for file in (directory / "state").rglob("*") if file.is_file()}
    code, (line,), _ = output(capsys, "inspect", "--json")
    assert code == 0
    assert line.pop("disk_bytes") == sum(len(content) for file, content in files.items() if "rocksdb" in file.parts)
    assert line == {
        "directory": "state/sowstream/orders/0",
        "application": "sowstream",
        "topic": "orders",
        "partition": 0,
        "kafka_topic": "orders.sow",
        "topic_id": "abc",
        "format": layout.FORMAT.decode(),
        "readable": True,
        "closed": "clean",
        "position": 77,
        "applied_at": "2023-11-14T22:13:20.000+00:00",
        "records": 2,
        "record_bytes": 2 + len(FIRST.value) + len(SECOND.value),
        "largest_bytes": 1 + len(FIRST.value),
        "expiring": 1,
    }
    assert {file: file.read_bytes() for file in (directory / "state").rglob("*") if file.is_file()} == files


def test_a_record_is_found_by_its_key(directory: Path, capsys: pytest.CaptureFixture[str]):
    """`--key` prints the record as the state has it, and fails if there is none."""
    write(directory, {b"1": FIRST, b"2": SECOND}, Progress(77, 1)).close()
    code, (line,), _ = output(capsys, "inspect", "--key", "2")
    assert code == 0
    assert line == {
        "topic": "orders",
        "partition": 0,
        "version": 1,
        "expires_at": "2033-05-18T03:33:20.000+00:00",
        "source_offset": None,
        "data": {"id": 2},
    }
    code, lines, errors = output(capsys, "inspect", "--key", "3")
    assert (code, lines) == (1, [])
    assert "has a record '3'" in errors


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_the_state_of_a_running_worker_is_refused(directory: Path, capsys: pytest.CaptureFixture[str], command: str):
    """A state that a worker has open is named, with another way to its records, and the command fails."""
    store = write(directory, {b"1": FIRST}, Progress(1, 1))
    code, lines, errors = output(capsys, command, "--json")
    store.close()
    assert (code, lines) == (1, [])
    assert "a running worker uses state/sowstream/orders/0; stop it" in errors


def test_a_worker_waits_while_a_state_is_read(directory: Path):
    """A state that is being read is locked, so that no worker changes it meanwhile."""
    write(directory, {b"1": FIRST}, Progress(1, 1)).close()
    reader = StateReader(directory / "state" / "sowstream" / "orders" / "0")
    try:
        with pytest.raises(Exception, match="in use by another process"):
            write(directory, {}, Progress(2, 2))
    finally:
        reader.close()


def test_no_state_is_an_error_that_names_the_directory(directory: Path, capsys: pytest.CaptureFixture[str]):
    """Without any state the directory that was searched is named, and the setting."""
    code, _, errors = output(capsys, "verify", "orders")
    assert code == 2
    assert f"{directory}/state has no state of orders; name the directory of a worker with --state-dir" in errors


def test_a_sound_state_has_no_fault(directory: Path, capsys: pytest.CaptureFixture[str]):
    """A state as a worker leaves it is verified without a fault."""
    write(directory, {b"1": FIRST, b"2": SECOND}, Progress(77, 1)).close()
    code, lines, errors = output(capsys, "verify", "--json")
    assert (code, lines) == (0, [])
    assert "1 state with 2 records: no fault." in errors


def put(directory: Path, key: bytes, value: bytes | None) -> None:
    """Change a row of a closed database behind the store's back."""
    from rocksdict import Options, Rdict

    options = Options(raw_mode=True)
    database = Rdict(str(directory / "state" / "sowstream" / "orders" / "0" / layout.ROCKSDB_DIRECTORY), options)
    if value is None:
        del database[key]
    else:
        database[key] = value
    database.close()


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        (b"r1", b"short", "damaged: "),
        (b"r1", layout.encode_record(Stored(1, b"no JSON")), "key '1': its value is not readable: "),
        (b"r1", layout.encode_record(Stored(1, b"{}", 5)), "key '1': it expires, and the index lacks it"),
        (layout.expiry_row((7, b"1")), b"", "key '1': the index has a time at which no record of it expires"),
        (layout.FORMAT_KEY, b"3", "it has format 3, and this version has 5: a worker wipes it"),
        (layout.FORMAT_KEY, None, "it has no mark of its format"),
        (layout.IDENTITY_KEY, b"orders.sow/1/abc", "it is a cache of orders.sow partition 1, and stands in another"),
        (layout.PROGRESS_KEY, None, "it has records, and position 0"),
        (layout.PROGRESS_KEY, b"123", "damaged: the progress mark has 3 bytes"),
    ],
)
def test_each_fault_is_named(
    directory: Path, capsys: pytest.CaptureFixture[str], key: bytes, value: bytes | None, fault: str
):
    """A wrong row, value, index entry or mark is reported with its key, and the command fails."""
    write(directory, {b"1": FIRST, b"2": SECOND}, Progress(77, 1)).close()
    put(directory, key, value)
    code, (line, *more), errors = output(capsys, "verify", "--json")
    assert code == 1
    assert fault in str(line["fault"])
    assert not more
    assert "delete the directory of a faulty state" in errors


def test_a_flipped_block_is_found_by_its_checksum(directory: Path, capsys: pytest.CaptureFixture[str]):
    """Bytes that the disk changed are reported as damage."""
    write(directory, {b"%d" % n: Stored(1, b'{"id":%d}' % n) for n in range(2000)}, Progress(77, 1)).close()
    table = max((directory / "state").rglob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[100:200] = bytes(byte ^ 255 for byte in content[100:200])
    table.write_bytes(content)
    code, (line,), _ = output(capsys, "verify", "--json")
    assert code == 1
    assert "damaged: " in str(line["fault"])


@pytest.mark.broker
def test_a_state_is_compared_with_its_topic(
    directory: Path, capsys: pytest.CaptureFixture[str], bootstrap: str, unique: str
):
    """`--sow` finds records that are missing, different or too many, and allows for records after the position."""
    (directory / "sowstream.yaml").write_text(
        json.dumps({"kafka": {"bootstrap.servers": bootstrap}, "topics": {unique: {"partitions": 1}}})
    )
    assert run(["topics", "apply"]) == 0
    config = load()
    publisher, sow = Publisher(config.kafka), f"{unique}.sow"
    for key, version in ((b"same", 1), (b"other", 1), (b"missing", 1), (b"gone", 1), (b"gone", 2), (b"newer", 1)):
        value = None if (key, version) == (b"gone", 2) else b"{}"
        publisher.send(sow, key, value, [] if value is None else [("version", b"%d" % version)])
    publisher.send(sow, b"newer", b"{}", [("version", b"2")])
    publisher.flush(120)
    admin = Admin(config.kafka)
    position = admin.end_offsets(sow, [0])[0] - 1
    place = directory / "state" / "sowstream" / unique / "0"
    identity = f"{sow}/0/{admin.topic_id(sow)}"
    store = RocksStore(place, identity=identity, memory=RocksMemory(1 << 20))
    rows: dict[bytes, Stored | None] = {b"same": Stored(1, b"{}"), b"newer": Stored(2, b"{}")}
    now_ms = int(time.time() * 1000)
    store.apply(rows | {b"other": Stored(9, b"{}"), b"gone": Stored(1, b"{}")}, Progress(position, now_ms))
    store.close()
    capsys.readouterr()

    code, lines, _ = output(capsys, "verify", "--sow", "--json")
    assert code == 1
    assert [line["fault"] for line in lines] == [
        f"key 'gone': the state has a record, and {sow} has none",
        f"key 'missing': {sow} has a record, and the state has none",
        f"key 'other': the state has another record than {sow}",
    ]

    store = RocksStore(place, identity=identity, memory=RocksMemory(1 << 20))
    store.apply({b"other": Stored(1, b"{}"), b"gone": None, b"missing": Stored(1, b"{}")}, Progress(position, now_ms))
    store.close()
    code, lines, errors = output(capsys, "verify", "--sow", "--json")
    assert (code, lines) == (0, [])
    assert ": no fault, also against Kafka." in errors

    # A state that a worker would wipe has this one fault, and not the differences that follow from it.
    for progress, reason in (
        (Progress(position + 99, now_ms), "ahead of the SOW topic"),
        (Progress(position, now_ms - 90_000_000), "older than the topic's delete.retention.ms"),
    ):
        store = RocksStore(place, identity=identity, memory=RocksMemory(1 << 20))
        store.apply({b"deleted": Stored(1, b"{}")}, progress)
        store.close()
        _, (line,), _ = output(capsys, "verify", "--sow", "--json")
        assert reason in str(line["fault"])
