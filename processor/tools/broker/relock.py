"""Writes `jars.lock` again: `python -m processor.tools.broker.relock`, to move to another version of Kafka."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from jgo.maven import Dependency, MavenContext

from processor.tools.broker.lockfile import LOCK_FILE, Jar, format_lock

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


def main() -> None:
    """Resolve Kafka with its own managed versions, add the logging binding, write the lock."""
    with tempfile.TemporaryDirectory(prefix="sowstream-relock-") as directory:
        context = MavenContext(repo_cache=Path(directory))
        kafka, needed = context.resolver.resolve([context.create_dependency(KAFKA)])
        jars = [
            locked(dependency)
            for dependency in [*kafka, *needed, *(context.create_dependency(name) for name in (LOGGING, TOOLS))]
        ]
    LOCK_FILE.write_text(format_lock(tuple(sorted(jars, key=lambda jar: jar.coordinate))), encoding="utf-8")
    print(f"{LOCK_FILE}: {len(jars)} jars", file=sys.stderr)  # noqa: T201 - a tool for maintainers


if __name__ == "__main__":
    main()
