"""The setup of a measured worker: topics of its own on the broker, and default settings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from processor.config.kafka_names import KafkaNames
from processor.errors import SowstreamError
from processor.kafka.admin.admin import Admin
from processor.tools.broker.server import free_port
from processor.topics.family import Role, TopicSpec, family_specs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
