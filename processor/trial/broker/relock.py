"""Writes `jars.lock` again, to move to another version of Kafka, or the lock of other programs of Kafka.

::

    python -m processor.trial.broker.relock
    python -m processor.trial.broker.relock tests/programs/drills/mirror.lock org.apache.kafka:connect-mirror:4.3.1
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from jgo.maven import Dependency, MavenContext

from processor.trial.broker.jars import LOCK_FILE, Jar, format_lock

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
"""Kafka logs through SLF4J, and its jars have no binding: without this one a failing broker would log nothing."""

TOOLS = "org.apache.kafka:kafka-tools:4.3.1"
"""Kafka's own console programs, without the dependencies of their other commands: an independent reader for tests."""


def locked(dependency: Dependency) -> Jar:
    """One resolved dependency, downloaded for its size and checksum."""
    content = dependency.artifact.resolve().read_bytes()
    return Jar(
        group=dependency.groupId,
        name=dependency.artifactId,
        version=dependency.version,
        classifier=dependency.classifier or "",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def resolved(roots: tuple[str, ...], alone: tuple[str, ...] = ()) -> tuple[Jar, ...]:
    """The jars of these artifacts with all that they need, and of those that are needed alone, sorted."""
    with tempfile.TemporaryDirectory(prefix="sowstream-relock-") as directory:
        context = MavenContext(repo_cache=Path(directory))
        own, needed = context.resolver.resolve([context.create_dependency(name) for name in roots])
        added = [context.create_dependency(name) for name in alone]
        jars = [locked(dependency) for dependency in [*own, *needed, *added]]
    return tuple(sorted(jars, key=lambda jar: jar.coordinate))


def main() -> None:
    """Resolve Kafka with its own managed versions, or other artifacts, and write the lock."""
    if len(sys.argv) > 1:
        file, jars = Path(sys.argv[1]), resolved(tuple(sys.argv[2:]), (LOGGING,))
    else:
        file, jars = LOCK_FILE, resolved((KAFKA,), (LOGGING, TOOLS))
    file.write_text(format_lock(jars), encoding="utf-8")
    print(f"{file}: {len(jars)} jars", file=sys.stderr)  # noqa: T201 - a tool for maintainers


if __name__ == "__main__":
    main()
