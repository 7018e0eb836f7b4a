"""The records that a processor under test wrote to one partition of an output, with its transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from processor.record import Record

if TYPE_CHECKING:
    from processor.record import Headers


@dataclass(slots=True)
class OutputLog:
    """One partition of an output topic."""

    committed: list[Record] = field(default_factory=list)
    """The records of committed transactions."""
    open: list[Record] = field(default_factory=list)
    """Sent in the open transaction."""
    end: int = 0
    """The offset of the next record."""

    def send(self, key: bytes | None, value: bytes | None, headers: Headers, now_ms: int) -> None:
        """Write a record in the open transaction, which begins with its first one."""
        self.open.append(Record(key, value, headers, self.end, now_ms))
        self.end += 1

    def finish(self, *, commit: bool) -> list[Record]:
        """End the transaction, which takes an offset for its marker; return the records that it committed."""
        done = self.open if commit else []
        self.end += bool(self.open)
        self.committed += done
        self.open = []
        return done
