"""Six ways to ruin one topic while its workers merge others, each with its cure."""

from __future__ import annotations

import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.endtoend.raw_batch import produce_unreadable
from tests.forked import run
from tests.hosting.packages import install

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.endtoend.world import World

WINDOW_RECORDS: Final = 200
_SCHEMA: Final = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "long", "default": 0}],
}


class Ruin:
    """A way to ruin the world's first topic, or a processor over it."""

    reasons: ClassVar[frozenset[str]] = frozenset()
    """Of these reasons a partition may be held; none: the pipeline fails as a whole."""
    is_curable: ClassVar[bool] = True

    def __init__(self, directory: Path, name: str) -> None:
        """Get ready, before workers start.

        Args:
            directory: an empty one.
            name: the topic that is going to be ruined.
        """
        self.directory = directory
        self.name = name
        self.pipeline = name
        """What is ruined."""
        self.topic: dict[str, Any] = {}
        """Settings of that topic."""
        self.tree: dict[str, Any] = {}
        """More settings."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set up the workers' environment."""

    def good(self, world: World, number: int) -> None:
        """Publish one good record to each partition of the topic."""
        self._produce(world, [(partition, b'{"id":"k%d","n":%d}' % (partition, number)) for partition in range(4)])

    def ruin(self, world: World) -> None:
        """Ruin the topic."""
        raise NotImplementedError

    def cure(self, world: World) -> None:
        """Repair it, as an operator would."""

    def close(self) -> None:
        """Close the opened clients."""

    def _produce(self, world: World, records: list[tuple[int, bytes]]) -> list[int]:
        """Publish values to partitions; returns their offsets."""
        producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 5})
        offsets: list[int] = []
        for partition, value in records:
            producer.produce(
                f"{self.name}.publish",
                value,
                b"k%d" % partition,
                partition=partition,
                on_delivery=lambda _, message: offsets.append(message.offset()),
            )
        assert producer.flush(120) == 0
        return sorted(offsets)

    def _skip(self, world: World, partition: int, until: int) -> None:
        """Run `sowstream resume`."""
        words = ["resume", self.name, "--partition", str(partition), "--skip", str(until), "--yes"]
        done = run(*words, "-c", str(world.file))
        assert done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}"


class BadRecords(Ruin):
    """More bad records than `dlq_max_ratio` allows."""

    reasons = frozenset({"rejects"})

    def __init__(self, directory: Path, name: str) -> None:
        """Configure a short window."""
        super().__init__(directory, name)
        self.topic = {"dlq_window_records": WINDOW_RECORDS, "foreign_partition": "accept"}
        self._last = -1

    def ruin(self, world: World) -> None:
        """Publish two windows full of bad records."""
        self._last = self._produce(world, [(0, b"{not json")] * (WINDOW_RECORDS * 2))[-1]

    def cure(self, world: World) -> None:
        """Skip them."""
        self._skip(world, 0, self._last)


class Grown(Ruin):
    """The input topic gets more partitions."""

    is_curable = False  # Kafka takes no partition away.

    def ruin(self, world: World) -> None:
        """Add a partition."""
        admin = AdminClient({"bootstrap.servers": world.bootstrap})
        for future in admin.create_partitions([NewPartitions(f"{self.name}.publish", 5)]).values():
            future.result(120)


class HangingTransaction(Ruin):
    """A foreign producer leaves a transaction open in the SOW topic, and then partitions have to be restored."""

    reasons = frozenset({"open_transaction"})

    def __init__(self, directory: Path, name: str) -> None:
        """Configure a short patience with restores."""
        super().__init__(directory, name)
        self.tree = {"restore_stall_timeout_s": 10}
        self.topic = {"foreign_partition": "accept"}
        self._foreign: Producer | None = None

    def ruin(self, world: World) -> None:
        """Open it in all partitions, which then move and move back."""
        settings = {"transactional.id": f"foreign-{self.name}", "transaction.timeout.ms": 600_000}
        foreign = self._foreign = Producer({"bootstrap.servers": world.bootstrap, **settings})
        foreign.init_transactions(120)
        foreign.begin_transaction()
        for partition in range(4):
            foreign.produce(f"{self.name}.sow", b"{}", b"foreign", partition=partition)
        assert foreign.flush(120) == 0
        self.move(world)

    def move(self, world: World) -> None:
        """Have partitions move to a third worker, which ends at once, and back."""
        third = world.start(name=[self.name])
        third.is_expected_to_end = True
        assigned = '"event": "assigned"'
        world.wait(
            lambda: assigned in third.log() or third.process.poll() is not None, "partitions moving to a third worker"
        )
        if third.process.poll() is None:
            third.stop()

    def cure(self, world: World) -> None:
        """End the transaction."""
        assert self._foreign is not None
        self._foreign.abort_transaction(120)


class UnreadableBatch(Ruin):
    """A batch in the input that librdkafka cannot decompress."""

    reasons = frozenset({"unreadable_batch"})

    def __init__(self, directory: Path, name: str) -> None:
        """Prepare to note the offset of the batch."""
        super().__init__(directory, name)
        self.topic = {"foreign_partition": "accept"}
        self._offset = -1

    def ruin(self, world: World) -> None:
        """Append it to partition 0."""
        self._offset = produce_unreadable(world.bootstrap, f"{self.name}.publish", 0, [b'{"id":"k0"}'] * 3)

    def cure(self, world: World) -> None:
        """Skip its three records."""
        self._skip(world, 0, self._offset + 2)


class SilentRegistry(Ruin):
    """The schema registry accepts connections and does not answer."""

    reasons = frozenset({"registry"})

    def __init__(self, directory: Path, name: str) -> None:
        """Start a registry that answers at first."""
        super().__init__(directory, name)
        self._registry = self.registry()
        self.topic = {"message_type": "avro", "foreign_partition": "accept"}
        self.tree = {"schema_registry": {"url": self._registry.url}}
        self._schema_id = 1

    def registry(self) -> Registry:
        """Start a registry."""
        return LocalRegistry()

    def good(self, world: World, number: int) -> None:
        """Publish Avro with a schema id."""
        self._produce(world, [(partition, self._avro(b"k%d" % partition, number)) for partition in range(4)])

    def ruin(self, world: World) -> None:
        """Silence the registry, and publish records of an unknown schema."""
        self._registry.silence()
        self._schema_id = 2
        self.good(world, 0)

    def cure(self, world: World) -> None:
        """Answer again."""
        self._registry.answer()

    def close(self) -> None:
        """End the registry."""
        self._registry.close()

    def _avro(self, key: bytes, number: int) -> bytes:
        """Encode magic 0, the id, then a string of less than 64 bytes and a long of less than 64."""
        return struct.pack(">bI", 0, self._schema_id) + bytes([len(key) * 2]) + key + bytes([number * 2])


class RaisingPlugin(Ruin):
    """A third-party processor whose `punctuate` raises."""

    reasons = frozenset({"plugin_failed"})

    def __init__(self, directory: Path, name: str) -> None:
        """Configure a processor over the topic."""
        super().__init__(directory, name)
        self.pipeline = f"{name}_copy"
        self._file = directory / "raise"
        settings = {"file": str(self._file)}
        self.tree = {"processors": {self.pipeline: {"use": "raising", "underlying": name, "settings": settings}}}
        self.topic = {"foreign_partition": "accept"}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Install the package."""
        install(self.directory / "site", "ruin", {"raising": "tests.endtoend.raising:Raising"})
        monkeypatch.setenv("PYTHONPATH", str(self.directory / "site"), prepend=":")
        monkeypatch.syspath_prepend(self.directory / "site")

    def ruin(self, world: World) -> None:
        """Make it raise."""
        self.set_raising(raises=True)

    def cure(self, world: World) -> None:
        """Stop raising."""
        self.set_raising(raises=False)

    def set_raising(self, *, raises: bool) -> None:
        """Create or remove the file that makes it raise."""
        if raises:
            self._file.touch()
        else:
            self._file.unlink()


class Registry(Protocol):
    """A schema registry that can be told not to answer."""

    url: str

    def silence(self) -> None:
        """Let all requests wait from now on."""

    def answer(self) -> None:
        """Answer again, also those that wait."""

    def close(self) -> None:
        """End it."""


class LocalRegistry:
    """A schema registry that answers workers' requests: one schema for any id."""

    def __init__(self) -> None:
        self._answers = threading.Event()  # While it is not set, requests wait.
        self._answers.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="registry", daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def silence(self) -> None:
        """Let all requests wait from now on."""
        self._answers.clear()

    def answer(self) -> None:
        """Answer again, also those that wait."""
        self._answers.set()

    def close(self) -> None:
        """Stop the server."""
        self.answer()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answers = self._answers

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answers.wait()
                body = {"id": 1, "version": 1, "subject": "any", "schema": json.dumps(_SCHEMA)}
                text = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return Handler


RUINS: Final = {
    "bad records": BadRecords,
    "grown input": Grown,
    "hanging transaction": HangingTransaction,
    "unreadable batch": UnreadableBatch,
    "silent registry": SilentRegistry,
    "raising plug-in": RaisingPlugin,
}
