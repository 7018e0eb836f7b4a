"""Provides the broker's jars: from the cache, or downloaded once, checked against `jars.lock` either way."""

from __future__ import annotations

import http.client
import os
import ssl
import tempfile
import threading
import urllib.request
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from processor.errors import Stop
from processor.tools.broker.directories import cache_dir
from processor.tools.broker.exclusive import exclusive
from processor.tools.broker.lockfile import LOCK_FILE, Jar, read_lock
from processor.tools.broker.progress import Advance, shown

if TYPE_CHECKING:
    from collections.abc import Callable

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
