"""Provides the broker's jars: from the cache, or downloaded once, checked against `jars.lock` either way."""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from processor.errors import Stop
from processor.trial.broker.directories import cache_dir, exclusive

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
    head = "# Made by `python -m processor.trial.broker.relock`: coordinate, bytes, SHA-256.\n"
    return head + "".join(f"{jar.coordinate} {jar.size_bytes} {jar.sha256}\n" for jar in jars)


def _jar(coordinate: str, size_bytes: int, sha256: str) -> Jar:
    group, name, *middle, version = coordinate.split(":")
    return Jar(group, name, version, middle[1] if middle else "", size_bytes, sha256)


Advance: TypeAlias = Callable[[int], None]
"""Callback: called with the number of new bytes; negative when a failed file starts again. Any thread."""

LINE_INTERVAL_S = 5.0
"""Time between two plain lines."""


@contextmanager
def shown(title: str, total_bytes: int) -> Iterator[Advance]:
    """Show progress on standard error while the block runs."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(title, total=total_bytes)
            yield lambda more_bytes: bar.advance(task, more_bytes)
    else:
        yield _PlainProgress(title, total_bytes)


class _PlainProgress:
    """Progress for a log: the start, the state now and then, the end."""

    def __init__(self, title: str, total_bytes: int) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._said_at_s = time.monotonic()
        self._lock = threading.Lock()
        self._say(f"{title}: {total_bytes / 1e6:.0f} MB to fetch")

    def __call__(self, more_bytes: int) -> None:
        with self._lock:
            if more_bytes == 0:
                return
            self._done_bytes += more_bytes
            now_s = time.monotonic()
            if self._done_bytes >= self._total_bytes or now_s - self._said_at_s > LINE_INTERVAL_S:
                self._said_at_s = now_s
                self._say(f"{self._title}: {self._done_bytes / 1e6:.0f} of {self._total_bytes / 1e6:.0f} MB")

    @staticmethod
    def _say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


DOWNLOADS_MAX = 6
"""Downloads at once."""
TRIES_MAX = 3
"""Tries for one jar before giving up."""
HTTP_TIMEOUT_S = 15
"""Longest wait for a connection or for the next bytes."""

_CENTRAL_GROUP: Final = ("org", "maven", "repo1")
_CENTRAL: Final = f"https://{'.'.join(reversed(_CENTRAL_GROUP))}/maven2"
"""Maven's central repository, by its reversed name as Maven writes groups; `SOWSTREAM_MAVEN_REPOSITORY` is another."""
_CHUNK_BYTES: Final = 1 << 16

_WAYS_OUT = """\
Do one of these and try again:
  - connect this machine to the network: HTTPS_PROXY names a proxy, REQUESTS_CA_BUNDLE a file of the certificates it
    needs, SOWSTREAM_MAVEN_REPOSITORY a mirror of Maven's central repository
  - SOWSTREAM_KAFKA_JARS=DIR: the `libs` directory of an Apache Kafka 4 that this machine has
  - use a Kafka that runs already: --bootstrap HOST:PORT, or SOWSTREAM_TEST_BOOTSTRAP=HOST:PORT for the tests"""


class _Cancelled(Exception):
    """Ends a download that is no longer needed."""


def class_path(lock: Path = LOCK_FILE) -> str:
    """The Java class path of the locked jars; downloads missing and damaged ones.

    Raises:
        Stop: the jars are not available; the message has the advice.
    """
    if jars_dir := os.environ.get("SOWSTREAM_KAFKA_JARS"):
        return _chosen_jars(Path(jars_dir).expanduser().absolute())
    jars = read_lock(lock)
    directory = cache_dir() / "jars"
    with exclusive(cache_dir() / "jars.flock", waiting="Another process is fetching Apache Kafka; waiting for it."):
        if missing := [jar for jar in jars if not jar.matches(directory / jar.file_name)]:
            _fetch(missing, directory)
    return os.pathsep.join(str(directory / jar.file_name) for jar in jars)


def _chosen_jars(directory: Path) -> str:
    """The class path of the user's own jars, unchecked: the `libs` of any Apache Kafka 4 will do."""
    if not any(directory.glob("kafka-server-*.jar")):
        raise Stop(f"SOWSTREAM_KAFKA_JARS={directory}: no kafka-server jar there; name the `libs` of an Apache Kafka 4")
    return f"{directory}/*"


def _fetch(missing: list[Jar], directory: Path) -> None:
    """Download several jars at once. Finished ones are kept, so that a second try has less to do."""
    directory.mkdir(parents=True, exist_ok=True)
    largest_first = sorted(missing, key=lambda jar: -jar.size_bytes)
    cancelled = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory.parent) as staging,
        shown(f"Apache Kafka ({len(missing)} jars)", sum(jar.size_bytes for jar in missing)) as advance,
        ThreadPoolExecutor(DOWNLOADS_MAX) as pool,
    ):
        downloads = [_Download(jar, directory, Path(staging), advance, cancelled) for jar in largest_first]
        futures = [pool.submit(download.run) for download in downloads]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise


def repository() -> str:
    """The address of the Maven repository: SOWSTREAM_MAVEN_REPOSITORY, or Maven's central one."""
    return os.environ.get("SOWSTREAM_MAVEN_REPOSITORY", _CENTRAL).rstrip("/")


def download(url: str, target: Path, advance: Callable[[int], None] | None = None) -> None:
    """Download one file; proxies are those of the environment.

    Args:
        url: the address, `https` or `http`.
        target: the file, which is replaced.
        advance: called with the number of bytes that each read has brought.

    Raises:
        OSError: the server cannot be reached, or does not answer with the file.
        http.client.HTTPException: the answer is cut off.
    """
    with (
        urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S, context=_trusted()) as response,  # noqa: S310
        target.open("wb") as file,
    ):
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            if advance is not None:
                advance(len(chunk))


def _trusted() -> ssl.SSLContext:
    """The authorities of this machine, those of certifi where it is installed, and those of REQUESTS_CA_BUNDLE."""
    context = ssl.create_default_context()
    try:
        import certifi  # noqa: PLC0415 - Python for macOS comes without authorities.
    except ImportError:
        pass
    else:
        context.load_verify_locations(certifi.where())
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        context.load_verify_locations(**{"capath" if Path(bundle).is_dir() else "cafile": bundle})
    return context


class _Download:
    """The download of one jar: to a staging directory, checked, and only then moved to its name."""

    def __init__(self, jar: Jar, directory: Path, staging: Path, advance: Advance, cancelled: threading.Event) -> None:
        self._jar = jar
        self._target = directory / jar.file_name
        self._staging = staging
        self._advance = advance
        self._cancelled = cancelled
        self._counted_bytes = 0

    def run(self) -> None:
        """Try a few times, with a growing pause.

        Raises:
            Stop: every try failed.
        """
        problem = ""
        for pause_s in range(TRIES_MAX):
            if self._cancelled.wait(pause_s):
                return
            try:
                self._once()
            except (OSError, http.client.HTTPException) as error:
                problem = str(error)
                self._count(-self._counted_bytes)
            else:
                return
        raise Stop(f"{self._jar.coordinate} cannot be fetched: {problem}\n{_WAYS_OUT}")

    def _once(self) -> None:
        staged = self._staging / self._jar.file_name
        download(f"{repository()}/{self._jar.path}", staged, self._count)
        if not self._jar.matches(staged):
            raise OSError(f"{staged.name} came with other bytes than jars.lock has; they were not used")
        staged.replace(self._target)

    def _count(self, more_bytes: int) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
        self._counted_bytes += more_bytes
        self._advance(more_bytes)
