"""What a streaming merge asks Kafka before it begins: whether its topics are there, and whether workers are at them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Final

from processor.errors import ConfigurationError, Stop
from processor.kafka.admin import Admin
from processor.kafka.log_reader import LogReader
from processor.plugins.delta_merge import DeltaMerge
from processor.runtime.pipeline import Pipeline, check_settings, family_of
from processor.runtime.topic_check import problems_of, tell
from processor.topics import topic_name
from spark_integration.options import Options
from spark_integration.settings import TopicSettings

_TIMEOUT_S: Final = 15.0
_SERVERS: Final = "kafka.bootstrap.servers"
_SECURITY: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


def client_properties(settings: TopicSettings, options: Options | None) -> dict[str, str] | None:
    """How this process reaches Kafka: as the settings say, or as Spark does where an address is all it needs."""
    if settings.kafka:
        return dict(settings.kafka)
    given = {name.lower(): value for name, value in (options or {}).items()}
    if any(name.startswith(_SECURITY) for name in given):
        return None  # In Java's words, which our clients do not know.
    return {"bootstrap.servers": given[_SERVERS]}


def check(settings: TopicSettings, kafka: Mapping[str, str]) -> None:
    """Refuse topics that cannot be used, and topics that workers are at.

    Raises:
        ConfigurationError: with what to do.
        Stop: Kafka does not answer, or refuses.
    """
    pipeline = Pipeline.of(DeltaMerge, settings.topic, name=settings.name, topic=settings.topic)
    check_settings([pipeline], lambda _: settings.codec())
    admin = Admin(kafka)
    if refused := tell(problems_of(admin, family_of(pipeline)), "topic at risk"):
        raise ConfigurationError(f"topics that cannot be used:\n{refused}")
    group, source = _group(settings), topic_name(settings.name, "publish")
    if hosts := _hosts(admin, group, source):
        raise ConfigurationError(
            f"workers at {', '.join(sorted(hosts))} merge {source!r} (consumer group {group!r}): both would write to "
            f"{topic_name(settings.name, 'sow')!r}; stop the workers of {settings.name!r} first"
        )


def committed(settings: TopicSettings, kafka: Mapping[str, str]) -> dict[int, int | None]:
    """Where the workers left the input: the next offset of each partition, None where they never were.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    source = topic_name(settings.name, "publish")
    reader = LogReader(kafka, group=_group(settings))
    deadline_s = time.monotonic() + _TIMEOUT_S
    found: dict[int, int | None] = {}
    try:
        while len(found) < settings.topic.partitions:
            with contextlib.suppress(TimeoutError):
                found[len(found)] = reader.committed(source, len(found), _TIMEOUT_S)
                continue
            if time.monotonic() > deadline_s:
                raise Stop(f"Kafka did not say in {_TIMEOUT_S:g} s where the workers left {source!r}; try again")
    finally:
        reader.close()
    return found


def _group(settings: TopicSettings) -> str:
    """The workers' consumer group."""
    return f"{settings.application_id}.{settings.name}"


def _hosts(admin: Admin, group: str, source: str) -> set[str]:
    """Where the members of a group are."""
    question = admin.ask_group(group, source, _TIMEOUT_S)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not question.is_answered and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return set(question.answer().hosts.values())
