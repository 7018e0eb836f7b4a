"""The feed: rows in files, records on a raw topic, and records on the publish topic itself, at a rate."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, Message, Producer

from tests.programs.pipeline.rows import Ledger, Notes, Row, Rows

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tests.programs.pipeline.layout import Layout

_TURN_S: Final = 0.5
_TRICKLE_TURN_S: Final = 4.0  # Each file costs its reader a task.
_RAW: Final = 0.15
_DIRECT: Final = 0.05
_TRICKLE: Final = 0.05
_NOTES: Final = 0.01
"""CSV rows for each other row."""


class Feed:
    """Sends rows from a thread of its own until it is stopped: `with Feed(...) as feed: ...`.

    After `rows_max` rows it goes on at a twentieth of its rate, so that later kills and moves meet input too.
    """

    def __init__(self, layout: Layout, *, seed: int, keys: int, rate: float, rows_max: int) -> None:
        """Set up without sending.

        Args:
            layout: the topics and the directory of the files.
            seed: the rows follow from it; the moment of each does not.
            keys: the number of orders.
            rate: rows a second.
            rows_max: the rows to send at this rate.
        """
        self.ledger = Ledger()
        self.sent = 0
        self._layout, self._rate, self._rows_max = layout, rate, rows_max
        self._lines = Rows(seed, keys, 1).lines()
        self._values = Rows(seed, keys, 2).values()
        self._commands = Rows(seed, keys, 3).commands()
        self._notes = Notes(seed)
        self._notes_begin = threading.Event()
        self._files = 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": layout.world.bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def has_sent_all(self) -> bool:
        """Return whether the rows at the full rate have been sent; raises the error of a feed that failed."""
        if self._failure is not None:
            raise self._failure
        return self.sent >= self._rows_max

    def begin_notes(self) -> None:
        """Write CSV files from now on."""
        self._notes_begin.set()

    def _run(self) -> None:
        try:
            began_s, due = time.monotonic(), 0.0
            while not self._stop.wait(_TURN_S if self.sent < self._rows_max else _TRICKLE_TURN_S):
                elapsed_s, began_s = time.monotonic() - began_s, time.monotonic()
                due += elapsed_s * self._rate * (1 if self.sent < self._rows_max else _TRICKLE)
                count = int(due)
                due -= count
                self._send(
                    min(count, max(self._rows_max - self.sent, int(self._rate * _TRICKLE_TURN_S * _TRICKLE) + 1))
                )
            assert self._producer.flush(60) == 0, "the broker did not take the feed's records in time"
        except BaseException as error:  # noqa: BLE001 - raised where the block is left.
            self._failure = error

    def _send(self, count: int) -> None:
        raw, direct = int(count * _RAW), int(count * _DIRECT)
        self._write([*islice(self._lines, count - raw - direct)])
        for row in islice(self._values, raw):
            self._produce_raw(row)
        for key, value, headers in islice(self._commands, direct):
            self._producer.produce(self._layout.topic("publish"), value, key, headers=dict(headers))
            self.ledger.direct += 1
        self._producer.poll(0)
        if self._notes_begin.is_set():
            self._write_notes(1 + int(count * _NOTES))
        self.sent += count

    def _write(self, rows: list[Row]) -> None:
        """Let a file of rows appear at once."""
        if not rows:
            return
        self._files += 1
        name = f"rows-{self._files:06d}.json"
        for line, row in enumerate(rows, 1):
            if row.text:
                self.ledger.rows[name, line] = row
        self._appear(self._layout.incoming / name, "".join(f"{row.text}\n" for row in rows))

    def _write_notes(self, count: int) -> None:
        self._files += 1
        name = f"notes-{self._files:06d}.csv"
        text, good, bad = self._notes.file(count)
        self.ledger.notes |= good
        self.ledger.rows |= {(name, line): row for line, row in bad.items()}
        self._appear(self._layout.csv_files / name, text)

    def _appear(self, file: Path, text: str) -> None:
        aside = self._layout.directory / f".{file.name}"
        aside.write_text(text, encoding="utf-8", newline="")
        aside.rename(file)

    def _produce_raw(self, row: Row) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            assert error is None, error
            assert offset is not None, "a delivered record has an offset"
            self.ledger.rows[f"{message.topic()}/{partition}", offset] = row

        value = None if row.text is None else row.text.encode()
        self._producer.produce(self._layout.raw, value, on_delivery=delivered)
