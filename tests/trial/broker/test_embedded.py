"""The embedded broker of tests and the demo: a real one that ends with its process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from processor.errors import BrokerUnavailable, Stop
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.server import HOST, RECORD_BYTES_MAX, Server, await_ready, free_port, is_ready

HEAP = "384m"
PARENT = f"""
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.server import is_ready
with EmbeddedBroker(heap="{HEAP}", start_timeout_s=300) as broker:
    try:
        print(broker.data_dir, flush=True)  # Whoever reads it may press Ctrl-C at once.
        input()
    except KeyboardInterrupt:
        print(is_ready(broker.bootstrap, timeout_s=120), flush=True)
"""

pytestmark = pytest.mark.broker


def create(bootstrap: str, topic: str) -> None:
    """Create a topic of one partition that accepts large records."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, 1, 1, config={"max.message.bytes": str(RECORD_BYTES_MAX)})
    for future in admin.create_topics([new]).values():
        future.result(120)


def publish(bootstrap: str, topic: str, value: bytes) -> None:
    """Publish one record in a transaction."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "message.max.bytes": RECORD_BYTES_MAX}
    producer = Producer(settings)
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(120)


def read(bootstrap: str, topic: str) -> bytes | None:
    """The value of the first committed record."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "fetch.message.max.bytes": RECORD_BYTES_MAX}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        return message.value() if message else None
    finally:
        consumer.close()


@pytest.fixture
def parent() -> Iterator[tuple[subprocess.Popen[bytes], Path, list[psutil.Process]]]:
    """A process with a broker of its own, the broker's directory, and its child processes."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        data_dir = Path(process.stdout.readline().decode().strip())
        below = psutil.Process(process.pid).children(recursive=True)
        assert [child.name() for child in below][-1] == "java"
        assert data_dir.is_dir()
        yield process, data_dir, below


def test_ready_is_ready(unique: str):
    """A broker that has just started accepts a topic, a transaction and a record of 16 MiB at once."""
    value = b"x" * (16 * 1024 * 1024)
    with EmbeddedBroker(heap="768m") as broker:
        create(broker.bootstrap, unique)
        publish(broker.bootstrap, unique, value)
        assert read(broker.bootstrap, unique) == value


@pytest.mark.long
def test_records_outlive_a_stop(tmp_path: Path, unique: str):
    """A broker with a directory of its own has its records after the next start, on another port."""
    with EmbeddedBroker(tmp_path / "data", heap=HEAP) as broker:
        create(broker.bootstrap, unique)
        publish(broker.bootstrap, unique, b"kept")
        before = broker.bootstrap
    with EmbeddedBroker(tmp_path / "data", heap=HEAP) as broker:
        assert broker.bootstrap != before
        assert read(broker.bootstrap, unique) == b"kept"


def test_killed_parent_leaves_nothing(parent):
    """Kill -9 of the process that started the broker ends the broker and removes its temporary directory."""
    process, data_dir, below = parent
    process.kill()
    _gone, alive = psutil.wait_procs(below, timeout=150)
    assert not alive
    assert not data_dir.exists()


@pytest.mark.long
def test_interrupt_stops_in_order(parent):
    """Ctrl-C reaches the process but not its broker, which serves until the block ends; nothing is left."""
    process, data_dir, below = parent
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == b"True\n"
    assert process.wait(150) == 0
    assert not [child for child in below if child.is_running()]
    assert not data_dir.exists()


def test_a_stop_that_takes_too_long_ends_by_force(tmp_path: Path):
    """A guard that does not end in time is killed with its program, and the directory is removed: that is no error."""
    broker = EmbeddedBroker(stop_timeout_s=-4.9)
    broker._temporary = tmp_path / "broker"
    broker._temporary.mkdir()
    guard = broker._guard = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    broker.stop()
    assert guard.returncode == -signal.SIGKILL
    assert not (tmp_path / "broker").exists()


def test_killed_while_starting(tmp_path: Path):
    """Kill -9 before the broker is ready leaves nothing either."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], env=os.environ | {"TMPDIR": str(tmp_path)})
    with process:
        while not (below := psutil.Process(process.pid).children(recursive=True)):
            assert process.poll() is None
        process.kill()
    _gone, alive = psutil.wait_procs(below, timeout=150)
    assert not alive
    assert not list(tmp_path.iterdir())


def test_taken_port_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A port in use is rejected by its number before anything is started, and nothing is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Stop, match=f"cannot have port {port}"):
            EmbeddedBroker(port=port).start()
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_lost_race_for_a_port_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If the free port is taken between its choice and its use, another one is chosen."""
    with socket.create_server((HOST, 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("processor.trial.broker.embedded.choose_port", lambda _wanted: next(ports))
        with EmbeddedBroker(heap=HEAP) as broker:
            assert broker.bootstrap != f"{HOST}:{taken.getsockname()[1]}"


@pytest.mark.long
def test_a_turkish_host_has_a_broker(monkeypatch: pytest.MonkeyPatch):
    """The broker starts on a Turkish host, where the upper case of Kafka's own names is another."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=tr -Duser.country=TR")
    with EmbeddedBroker(heap=HEAP) as broker:
        assert is_ready(broker.bootstrap, timeout_s=120)


@pytest.mark.long
def test_failed_start_is_reported_with_its_log(tmp_path: Path):
    """The error for a broker that ends while it starts has its log."""
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=77\n")
    with pytest.raises(BrokerUnavailable, match="77"):
        EmbeddedBroker(tmp_path, heap=HEAP).start()


def test_impossible_heap_is_reported_with_javas_output(tmp_path: Path):
    """The error has Java's output from before any log exists."""
    with pytest.raises(BrokerUnavailable, match="heap"):
        EmbeddedBroker(tmp_path, heap="1k").start()


@pytest.mark.parametrize(("load", "words"), [(0.5, " s:\n"), (999.0, "busy, with a load of 999 on ")])
def test_a_busy_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, words: str):
    """A broker that is not ready in time is reported with the load where the machine is busy."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    server = Server(tmp_path, free_port(), HEAP, Path("java"), "")
    with pytest.raises(BrokerUnavailable, match=words):
        await_ready(server, has_ended=lambda: False, timeout_s=-1)


def test_a_port_without_a_listener_is_not_ready():
    """A port without a listener is not ready."""
    assert not is_ready(f"{HOST}:{free_port()}", timeout_s=0.5)


def test_stranger_is_not_ready():
    """A server that closes the connection without an answer in Kafka's protocol is not ready."""
    with socket.create_server((HOST, 0)) as stranger:

        def hang_up() -> None:
            connection, _ = stranger.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert not is_ready(f"{HOST}:{stranger.getsockname()[1]}", timeout_s=0.5)
        thread.join()
