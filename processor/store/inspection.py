"""Looks into the database of a partition that no worker uses, and changes nothing on disk."""

from __future__ import annotations

from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from rocksdict import AccessType, Options, Rdict, ReadOptions

from processor.errors import StateDamaged, StateLocked
from processor.store import layout
from processor.store.contract import Progress
from processor.store.errors import mapped_errors
from processor.store.file_lock import lock_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processor.record import Stored
    from processor.store.contract import Expiring


class StateMarks(NamedTuple):
    """The marks of a partition's database: its format, its origin and its progress."""

    format: str | None
    """Its format; None: the database was never claimed."""
    topic: str | None
    """The Kafka topic that it is a cache of; None: it names none."""
    partition: int | None
    """The partition of that topic."""
    topic_id: str | None
    """The id of that topic, which a recreated topic of the same name does not have."""
    progress: Progress
    """Its progress in that topic."""
    is_clean: bool
    """True if it was closed in good order."""

    @property
    def is_readable(self) -> bool:
        """True if this version can read the records; a worker wipes a state of any other format."""
        return (self.format or "").encode() in layout.READABLE_FORMATS


class StateReader:
    """Reads one partition's database; a worker that starts meanwhile finds it locked."""

    def __init__(self, directory: Path) -> None:
        """Lock and open it, for reading only.

        Args:
            directory: the directory of the partition, as a worker has it.

        Raises:
            StateLocked: a worker uses it.
            StateDamaged: it cannot be opened.
            DiskUnusable: the disk is failing or forbidden.
        """
        self._directory = directory
        self._lock = _locked(directory)
        options = Options(raw_mode=True)
        try:
            with mapped_errors("opening", directory):
                self._db = Rdict(
                    str(directory / layout.ROCKSDB_DIRECTORY),
                    options=options,
                    column_families={"default": options},
                    access_type=AccessType.read_only(),
                )
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        """Release the directory."""
        try:
            self._db.close()
        finally:
            self._release()

    def marks(self) -> StateMarks:
        """The marks.

        Raises:
            StateDamaged: they cannot be read.
        """
        keys = layout.FORMAT_KEY, layout.IDENTITY_KEY, layout.PROGRESS_KEY, layout.CLOSED_KEY
        with mapped_errors("reading", self._directory):
            marked, identity, progress, closed = cast("list[bytes | None]", self._db.get(list(keys)))
        topic, partition, topic_id = layout.identity_parts(identity)
        return StateMarks(
            format=None if marked is None else marked.decode(errors="replace"),
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            progress=Progress(0, 0) if progress is None else layout.decode_progress(progress),
            is_clean=closed is not None,
        )

    def get(self, key: bytes) -> Stored | None:
        """The record of a key; None: there is none.

        Raises:
            StateDamaged: it cannot be read.
        """
        with mapped_errors("reading", self._directory):
            row = cast("bytes | None", self._db.get(layout.RECORD_PREFIX + key))
        return None if row is None else layout.decode_record(row)

    def records(self) -> Iterator[tuple[bytes, Stored]]:
        """Every key and record, in key order. RocksDB checks the checksum of each block that it reads.

        Raises:
            StateDamaged: a checksum is wrong, or a record cannot be decoded.
        """
        for row, value in self._rows(layout.RECORD_PREFIX, layout.AFTER_RECORDS):
            try:
                stored = layout.decode_record(value)
            except StateDamaged as error:
                raise StateDamaged(f"reading {self._directory}: key {row[1:]!r:.100}: {error}") from error
            yield row[len(layout.RECORD_PREFIX) :], stored

    def expiring(self) -> Iterator[Expiring]:
        """Every row of the expiry index, in order of time and key.

        Raises:
            StateDamaged: as `records`.
        """
        for row, _ in self._rows(layout.EXPIRY_PREFIX, layout.AFTER_EXPIRIES):
            yield layout.expiring_of(row)

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        options.fill_cache(False)  # type: ignore[call-arg]  # The stub lacks the argument.
        with mapped_errors("reading", self._directory):
            rows = self._db.iter(options)
            rows.seek(begin)
            while rows.valid():
                yield rows.key(), rows.value()
                rows.next()
            # Damage ends an iteration as the last record does; only this call distinguishes them.
            rows.status()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()


def disk_bytes(directory: Path) -> int:
    """The bytes of the files of a partition's database."""
    return sum(file.stat().st_size for file in (directory / layout.ROCKSDB_DIRECTORY).iterdir() if file.is_file())


def is_state(directory: Path) -> bool:
    """Return whether a directory is that of a partition with a database."""
    return directory.name.isdecimal() and (directory / layout.ROCKSDB_DIRECTORY).is_dir()


@contextmanager
def opened(directory: Path) -> Iterator[StateReader]:
    """A reader that is closed at the end of the block; errors as `StateReader`."""
    reader = StateReader(directory)
    try:
        yield reader
    finally:
        reader.close()


def _locked(directory: Path) -> IO[bytes] | None:
    """Lock a directory, and leave the time of its last use as it is; None: no worker has ever locked it."""
    with mapped_errors("locking", directory):
        try:
            file = (directory / layout.LOCK_FILE).open("r+b")
        except FileNotFoundError:
            return None
    try:
        lock_file(file)
    except BaseException as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise StateLocked(f"{directory} is in use by another process") from None
        raise
    return file
