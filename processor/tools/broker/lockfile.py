"""`jars.lock`: the jars of the embedded broker, each pinned by coordinate, size and SHA-256."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = Path(__file__).with_name("jars.lock")


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar of the broker's class path."""

    group: str
    """Maven group."""
    name: str
    """Maven artifact."""
    version: str
    """Exact version."""
    classifier: str
    """Maven classifier; empty for nearly all."""
    size_bytes: int
    """Its length, known before the download, for the progress bar."""
    sha256: str
    """The hex digest that its bytes must have."""

    @property
    def coordinate(self) -> str:
        """`group:artifact:version`, with `:jar:classifier` before the version if there is one."""
        middle = f"jar:{self.classifier}:" if self.classifier else ""
        return f"{self.group}:{self.name}:{middle}{self.version}"

    @property
    def file_name(self) -> str:
        """The file name in any directory of jars."""
        return f"{self.name}-{self.version}{f'-{self.classifier}' if self.classifier else ''}.jar"

    @property
    def path(self) -> str:
        """Its place in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"

    def matches(self, path: Path) -> bool:
        """Return whether the file exists and has the locked bytes."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def read_lock(path: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """The locked jars, in class-path order: one per line, `coordinate bytes sha256`."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return tuple(_jar(coordinate, int(size_bytes), sha256) for coordinate, size_bytes, sha256 in rows)


def format_lock(jars: tuple[Jar, ...]) -> str:
    """The text that `read_lock` reads back."""
    head = "# Made by `python -m processor.tools.broker.relock`: coordinate, bytes, SHA-256.\n"
    return head + "".join(f"{jar.coordinate} {jar.size_bytes} {jar.sha256}\n" for jar in jars)


def _jar(coordinate: str, size_bytes: int, sha256: str) -> Jar:
    group, name, *middle, version = coordinate.split(":")
    return Jar(group, name, version, middle[1] if middle else "", size_bytes, sha256)
