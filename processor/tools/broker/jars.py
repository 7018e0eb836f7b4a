"""Provides the broker's jars: from the cache, or downloaded once, checked against `jars.lock` either way."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from processor.errors import Stop
from processor.tools.broker.directories import cache_dir
from processor.tools.broker.exclusive import exclusive
from processor.tools.broker.lockfile import LOCK_FILE, Jar, read_lock
from processor.tools.broker.progress import Advance, shown

DOWNLOADS_MAX = 6
"""Downloads at once."""
TRIES_MAX = 3
"""Tries for one jar before giving up."""
HTTP_TIMEOUT_S = 15
"""Longest wait for a connection or for the next bytes."""

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


def _maven_client() -> ModuleType:
    """The Maven client, imported late: it is slow to import, and not needed with an own Kafka."""
    try:
        from jgo import maven  # noqa: PLC0415
    except ImportError:
        raise Stop("fetching Apache Kafka needs a package: pip install 'sowstream[embedded]'") from None
    return maven


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
            except (OSError, RuntimeError) as error:
                # From jgo: OSError for the network (requests' errors are such), RuntimeError for any status but 200.
                problem = str(error)
                self._count(-self._counted_bytes)
            else:
                return
        raise Stop(f"{self._jar.coordinate} cannot be fetched: {problem}\n{_WAYS_OUT}")

    def _once(self) -> None:
        maven = _maven_client()
        mirror = os.environ.get("SOWSTREAM_MAVEN_REPOSITORY")
        # A repository of its own for every try: the user's ~/.m2 and half-written files are not used.
        with tempfile.TemporaryDirectory(dir=self._staging) as repository:
            context = maven.MavenContext(
                resolver=maven.PythonResolver(progress_callback=self._counting),
                repo_cache=Path(repository),
                remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
                timeout=HTTP_TIMEOUT_S,
            )
            fetched = context.create_dependency(self._jar.coordinate).artifact.resolve()
            if not self._jar.matches(fetched):
                raise RuntimeError(f"{fetched.name} came with other bytes than jars.lock has; they were not used")
            fetched.replace(self._target)
        self._count(self._jar.size_bytes - self._counted_bytes)

    @contextmanager
    def _counting(self, _file_name: str, _total_bytes: int) -> Iterator[Callable[[int], None]]:
        yield self._count

    def _count(self, more_bytes: int) -> None:
        if self._cancelled.is_set():
            raise _Cancelled
        self._counted_bytes += more_bytes
        self._advance(more_bytes)
