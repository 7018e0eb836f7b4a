"""Small text files next to the checkpoints, on a local disk or on any file system that Hadoop knows."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

from pyspark.sql import SparkSession

from processor.errors import ConfigurationError
from spark_integration.foundation.pyspark_private import default_file_system, hadoop_files, replace_file


class SmallFiles(ABC):
    """The files below one directory, which may be missing; a local one that this user may not read is an error."""

    @abstractmethod
    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""

    @abstractmethod
    def write(self, name: str, text: str) -> None:
        """Replace a file: a reader sees the old text or the new one."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """The names of the files in a directory below; empty if it does not exist."""


class LocalFiles(SmallFiles):
    """Files on a disk of this machine."""

    def __init__(self, directory: Path) -> None:
        """Open the files at a directory."""
        self._directory = directory

    def read(self, name: str) -> str | None:
        """See `SmallFiles`."""
        try:
            return (self._directory / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise _closed(error) from None

    def write(self, name: str, text: str) -> None:
        """See `SmallFiles`."""
        file = self._directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, file)  # noqa: PTH105 - its name says that it replaces

    def names(self, directory: str) -> list[str]:
        """See `SmallFiles`."""
        place = self._directory / directory
        try:
            return sorted(file.name for file in place.iterdir()) if place.is_dir() else []
        except PermissionError as error:
            raise _closed(error) from None


def _closed(error: PermissionError) -> ConfigurationError:
    return ConfigurationError(f"{error.filename} cannot be read by this user")


class HadoopFiles(SmallFiles):
    """Files on a file system that Hadoop knows, through Spark's JVM."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        """Open the files at a directory."""
        self._spark, self._directory = spark, directory
        self._path, self._files = hadoop_files(spark, directory, f"the files at {directory}")

    def read(self, name: str) -> str | None:
        """See `SmallFiles`."""
        at = self._path(f"{self._directory}/{name}")
        if not self._files.exists(at):
            return None
        stream = self._files.open(at)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """See `SmallFiles`."""
        final = self._path(f"{self._directory}/{name}")
        aside = self._path(final.getParent(), f".{final.getName()}.{uuid.uuid4().hex[:8]}")
        stream = self._files.create(aside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        replace_file(self._spark, aside, final)

    def names(self, directory: str) -> list[str]:
        """See `SmallFiles`."""
        at = self._path(f"{self._directory}/{directory}")
        if not self._files.exists(at):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(at))


def small_files(directory: str, spark: SparkSession | None) -> SmallFiles | None:
    """Open the files at a directory: a local one directly, others through a session.

    Args:
        directory: a path, or an address with a scheme.
        spark: a session; None: only local files can be read.

    Returns:
        The files; None where a session is needed and there is none.
    """
    local = without_scheme(directory)
    if spark is None:
        return LocalFiles(local) if local.is_absolute() else None
    is_local = directory.startswith("file:") or (
        directory.startswith("/") and default_file_system(spark, f"the files at {directory}").startswith("file:")
    )
    return LocalFiles(local) if is_local else HadoopFiles(spark, directory)


def without_scheme(path: str) -> Path:
    """The path of an address with the scheme `file` or with none; of another file system it is not absolute."""
    return Path(path.removeprefix("file://").removeprefix("file:"))
