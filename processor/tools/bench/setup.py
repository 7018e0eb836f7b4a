"""What a measured worker is given: topics of its own on the broker, and settings as shipped."""

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


class Setup(NamedTuple):
    """One worker's settings, and where they are."""

    name: str
    """The family, and the application's id."""
    kafka: Mapping[str, str]
    """librdkafka properties."""
    file: Path
    """The settings file; what the worker writes and logs goes beside it."""
    metrics_port: int
    """Where it tells how far it is."""
    partitions: int = PARTITIONS
    """Partitions of the input."""

    @property
    def directory(self) -> Path:
        """Where all of it is."""
        return self.file.parent

    @property
    def group(self) -> str:
        """The worker's consumer group."""
        return f"{self.name}.{self.name}"

    def topic(self, role: Role) -> str:
        """The Kafka topic of a role."""
        return KafkaNames().topic(self.name, role)


def write_setup(directory: Path, name: str, kafka: Mapping[str, str], *, topic: Any = None, **more: Any) -> Setup:
    """Write the settings of one worker into a new directory; what is not said is as shipped.

    Args:
        directory: made here; the state goes there, too.
        name: the family.
        kafka: librdkafka properties.
        topic: settings of the topic.
        more: other settings, such as `guarantee`.
    """
    directory.mkdir()
    setup = Setup(name, kafka, directory / "sowstream.yaml", free_port())
    tree = {
        "application_id": name,
        "kafka": dict(kafka),
        "state_dir": str(directory / "state"),
        "topics": {name: {"partitions": PARTITIONS, **(topic or {})}},
        "runtime": {"metrics_port": setup.metrics_port},
        **more,
    }
    # It may have a password.
    setup.file.touch(mode=0o600)
    setup.file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return setup


@contextlib.contextmanager
def topics(kafka: Mapping[str, str], family: str, *more: str) -> Iterator[None]:
    """The topics of a family, and more of other names, empty; deleted in the end, or named in a note to the error.

    Raises:
        Stop: Kafka does not let us make or delete them.
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
    """Why it ended counts more than what is left of it; that is told beside it."""
    try:
        admin.delete(names)
    except SowstreamError as error:
        cause.add_note(f"Topics are left, which you must delete: {', '.join(names)}. They could not be: {error}")
