"""The setup of a measured worker: topics of its own on the broker, default settings, and the input."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import yaml

from processor.codec import load_codec
from processor.config.kafka_names import KafkaNames
from processor.errors import SowstreamError
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.record import Headers
from processor.topics.family import Role, TopicSpec, family_specs
from processor.trial.broker.server import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence


PARTITIONS: Final = 4

_ROLES: Final[tuple[Role, ...]] = ("publish", "sow", "delta", "ack", "mark", "dlq")


class BenchSetup(NamedTuple):
    """The settings of one worker, and their location."""

    name: str
    """The topic family, and the application's id."""
    kafka: Mapping[str, str]
    """librdkafka properties."""
    file: Path
    """The settings file; the worker's state and log are next to it."""
    metrics_port: int
    """The port of its metrics."""
    partitions: int = PARTITIONS
    """The number of input partitions."""

    @property
    def directory(self) -> Path:
        """The directory of the file, the state and the log."""
        return self.file.parent

    @property
    def group(self) -> str:
        """The worker's consumer group."""
        return f"{self.name}.{self.name}"

    def topic(self, role: Role) -> str:
        """The Kafka topic of a role."""
        return KafkaNames().topic(self.name, role)


def write_setup(directory: Path, name: str, kafka: Mapping[str, str], *, topic: Any = None, **more: Any) -> BenchSetup:
    """Write the settings of one worker into a new directory; all others have their defaults.

    Args:
        directory: created here; the state is stored there, too.
        name: the topic family.
        kafka: librdkafka properties.
        topic: settings of the topic.
        more: other settings, such as `guarantee`.
    """
    directory.mkdir()
    setup = BenchSetup(name, kafka, directory / "sowstream.yaml", free_port())
    tree = {
        "application_id": name,
        "kafka": dict(kafka),
        "state_dir": str(directory / "state"),
        "topics": {name: {"partitions": PARTITIONS, **(topic or {})}},
        "runtime": {"metrics_port": setup.metrics_port},
        **more,
    }
    # The file may contain a password.
    setup.file.touch(mode=0o600)
    setup.file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return setup


@contextlib.contextmanager
def topics(kafka: Mapping[str, str], family: str, *more: str) -> Iterator[None]:
    """Create the topics of a family, and others by name, all empty; delete them in the end, or note them in the error.

    Raises:
        Stop: Kafka does not allow creating or deleting them.
    """
    specs = family_specs(family, _ROLES, partitions=PARTITIONS)
    specs += [TopicSpec(name, "delta", PARTITIONS, {}) for name in more]
    names = [spec.name for spec in specs]
    admin = Admin(kafka)
    try:
        admin.create(specs)
        yield
        admin.delete(names)
    except BaseException as error:
        _delete_if_possible(admin, names, error)
        raise


def _delete_if_possible(admin: Admin, names: Sequence[str], cause: BaseException) -> None:
    """Delete topics after an error, which counts more: topics that remain are named in a note to it."""
    try:
        admin.delete(names)
    except SowstreamError as error:
        cause.add_note(f"Topics are left, which you must delete: {', '.join(names)}. They could not be: {error}")


SEED: Final = 7
"""The seed of the input."""

Write: TypeAlias = Callable[[int, dict[str, Any], bool], tuple[bytes, Headers]]
"""Encodes a message: from its number, its body and whether it is a delta, to its value and headers."""

_TOLD_EACH: Final = 10_000


def load(
    kafka: Mapping[str, str],
    topic: str,
    count: int,
    keys: int,
    *,
    seed: int = SEED,
    write: Write | None = None,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Publish `count` records over `keys` keys, as JSON without headers by default.

    Args:
        kafka: librdkafka properties.
        topic: the Kafka topic.
        count: the number of records.
        keys: the maximum number of keys.
        seed: the seed of the records.
        write: encodes each record.
        on_progress: called now and then with the number of records sent.

    Raises:
        Stop: Kafka does not take them.
    """
    write = write or _json()
    # Large batches: the measured programs read them, and must not be limited by small ones.
    publisher = Publisher({"linger.ms": "20", **kafka})
    for number, (key, body, is_delta) in enumerate(messages(count, keys, seed=seed)):
        value, headers = write(number, body, is_delta)
        while not publisher.try_send(topic, b"%d" % key, value, headers or None):
            publisher.wait_for_room()
        if number % _TOLD_EACH == 0:
            publisher.serve()
            on_progress(number)
    publisher.flush()


def messages(count: int, keys: int, *, seed: int = SEED) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Key, body and whether it is a delta: the first message of a key is a full record."""
    rng = random.Random(seed)  # noqa: S311 - not used for secrets
    seen: set[int] = set()
    for number in range(count):
        key = rng.randrange(keys)
        is_delta = key in seen
        seen.add(key)
        yield key, _delta(rng, key, number) if is_delta else _full(rng, key, number), is_delta


def _json() -> Write:
    encode = load_codec("json").encode
    return lambda _number, body, _is_delta: (encode(body), [])


def _full(rng: random.Random, key: int, number: int) -> dict[str, Any]:
    return {
        "id": key,
        "status": "new",
        "symbol": f"SYM{key % 500}",
        "qty": rng.randrange(1000),
        "price": rng.random() * 100,
        "notes": "x" * 40,
        "customer": {"name": f"c{key}", "tier": key % 5, "address": {"zip": key % 99_999}},
        "tags": ["a", "b", "c"],
        "ts": number,
    }


def _delta(rng: random.Random, key: int, number: int) -> dict[str, Any]:
    if number % 4:
        return {"id": key, "price": rng.random() * 100, "ts": number}
    return {"id": key, "status": f"s{number % 7}", "customer": {"tier": number % 5}, "ts": number}
