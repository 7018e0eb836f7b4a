"""The last stages of views, with their notes over restarts: the pass over all groups, and the input prefix.

In the pass each group is computed once and compared with its row. The prefix is that of each input partition which
the rows reflect (header `as_of`).
"""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Input, Output, Processor
from processor.builtin.view.definitions import check_fingerprint
from processor.builtin.view.stage_output import RowWriter
from processor.config import ViewConfig
from processor.wire.record_headers import as_of_header, input_place
from processor.wire.view_parts import group_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Context, Headers, Record, Stored, Value


_PREFIX_MARK: Final = b"as_of"


class InputPrefix:
    """The offsets after the last records, of each input partition, whose parts have come; kept as a mark."""

    def __init__(self, context: Context) -> None:
        """Begin where the predecessor ended."""
        self._context = context
        self._offsets: dict[str, int] = json.loads(context.marks.get(_PREFIX_MARK) or b"{}")

    def took(self, records: Sequence[Record]) -> None:
        """Note the places of the records from which these parts were made."""
        for record in records:
            if (place := input_place(record.headers)) is not None:
                partition, _, offset = place.decode().rpartition("/")
                self._offsets[partition] = max(self._offsets.get(partition, 0), int(offset) + 1)
        self._context.marks.put(_PREFIX_MARK, json.dumps(self._offsets).encode())

    def headers(self) -> Headers:
        """Return the header of the rows that are written now."""
        return [as_of_header(self._offsets)]


_PIECE: Final = 2_000
"""Keys of the table, and then of the state, that are looked at in one turn: a few milliseconds."""

_MARK: Final = b"compared"

_FRESH_MS: Final = 3_600_000
"""Greatest age of what a former instance compared: less than the time for which Kafka keeps tombstones."""

_REFRESH_MS: Final = 600_000
"""Time between two notes of a pass that has ended."""

_PROCESS: list[str] = [secrets.token_hex(8)]


def forget_process() -> None:
    """Let later instances begin their passes with the first group, as in another process; for tests."""
    _PROCESS[0] = secrets.token_hex(8)


class StartPass:
    """Names the groups of the table, and then those of the rows, a piece at a time.

    The table is restored to the end of the input, and so may be ahead of the records that come. No row is written
    before these have come: until then the rows stay those of the prefix that the predecessor had read.

    A mark keeps the place up to which the groups have been compared. After a rollback the next instance of the same
    process goes on from there: what has changed since comes again as input. A new process begins with the first group,
    so that a restart mends rows that differ for any reason.
    """

    def __init__(self, context: Context) -> None:
        """Begin before the first group, or where a former instance of this process was."""
        self._context = context
        self._after: bytes | None = None
        self._is_among_rows = False
        self.is_done = False
        """True if all groups have been named, by this instance or by a former one."""
        self.was_completed = False
        """True if this instance came to the end from the first group: it has named each group with members."""
        self._is_from_first = True
        self.may_write = context.table_until == 0
        """True if the records that the table was restored from have come."""
        self._is_waited_for = False  # Whether rows wait although no further input may come.
        self._noted = context.marks.get(_MARK) or b""
        self._noted_ms = 0
        self._resume()

    @property
    def is_due(self) -> bool:
        """True if rows are to be written now, whether or not a commit is near."""
        return self._is_waited_for and self.may_write

    def flushes(self, *, has_changed: bool) -> bool:
        """Return whether the changed rows may be written now; if not, they are due as soon as they may."""
        self._is_waited_for = has_changed and not self.may_write
        if self._is_waited_for:
            self.wrote(are_all=False)  # The input position may be committed before the rows: a rollback begins again.
        return has_changed and self.may_write

    @property
    def has_more(self) -> bool:
        """True if there is more to name now."""
        return self.may_write and not self.is_done

    def took(self, offset: int) -> None:
        """Note that the records up to an offset have come."""
        self.may_write = self.may_write or offset + 1 >= self._context.table_until

    def next_groups(
        self, fold: Callable[[bytes | None, Sequence[tuple[bytes, Stored]], bool], None] | None = None
    ) -> list[bytes]:
        """Return the keys of the next groups; each may come more than once.

        Args:
            fold: called with each piece of the table: the key before it, its rows, and whether it is the last one.
        """
        # At the end of the input all records have come: compaction may have removed the last of them.
        self.may_write = self.may_write or self._context.is_at_end
        if not self.has_more:
            return []
        store = self._context.state if self._is_among_rows else self._context.table
        rows = store.scan(self._after, _PIECE)
        is_last = len(rows) < _PIECE
        groups = [key if self._is_among_rows else group_of(key) for key, _ in rows]
        if fold is not None and not self._is_among_rows:
            fold(self._after, rows, is_last)
        if not is_last:
            self._after = rows[-1][0]
        elif self._is_among_rows:
            self.is_done, self.was_completed = True, self._is_from_first
        else:
            self._is_among_rows, self._after = True, None
        self._is_waited_for = self._is_waited_for or bool(groups)
        return list(dict.fromkeys(groups))

    def wrote(self, *, are_all: bool) -> None:
        """Note the place of the pass with the rows that have just been written.

        Args:
            are_all: whether all rows of the groups that were named are written; if not, nothing counts as compared.
        """
        now_ms = self._context.now_ms
        note = b""
        if are_all:
            after = None if self._after is None else self._after.hex()
            note = json.dumps([_PROCESS[0], self._is_among_rows, self.is_done, after]).encode()
        if note == self._noted and now_ms - self._noted_ms < _REFRESH_MS:
            return
        self._noted, self._noted_ms = note, now_ms
        self._context.marks.put(_MARK, note and b"%d %b" % (now_ms, note))

    def _resume(self) -> None:
        """Go on where the mark says, if this process wrote it a short time ago."""
        at_ms, _, note = self._noted.partition(b" ")
        self._noted = note
        if not note or not 0 <= self._context.now_ms - int(at_ms) < _FRESH_MS:
            return
        process, is_among_rows, is_done, after = json.loads(note)
        if process == _PROCESS[0]:
            self._is_from_first = after is None and not is_among_rows
            self._is_among_rows, self.is_done, self._noted_ms = is_among_rows, is_done, int(at_ms)
            self._after = None if after is None else bytes.fromhex(after)


class LastStage(Processor):
    """The base of stages that write the rows: their state is the rows, their table the parts that make them."""

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("parts")
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"), Output("mark"))
    keeps_table: ClassVar[bool] = True

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:  # noqa: ARG003
        """Refuse a definition that cannot be used."""
        assert isinstance(settings, ViewConfig)
        cls._compile(name, settings)

    @staticmethod
    @abstractmethod
    def _compile(name: str, settings: ViewConfig, /) -> object:
        """Compile the definition; a ConfigurationError refuses it."""

    def _begin(self, context: Context, settings: ViewConfig) -> None:
        """Begin with no changed row; all rows are compared soon."""
        self._context = context
        self._writer = RowWriter(context)
        self._changed: dict[bytes, None] = {}
        self._start = StartPass(context)
        self._as_of = InputPrefix(context) if settings.as_of else None
        check_fingerprint(context, settings)

    def _write(self, rows: Mapping[bytes, Value | None]) -> int:
        """Write the rows that differ from the SOW records; returns how many cannot be written."""
        return self._writer.write(rows, None if self._as_of is None else self._as_of.headers())
