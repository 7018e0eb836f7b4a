"""The plug-in `view_join`: where the records of both sides with equal keys meet, and each reference is answered.

After a change of a partner, rounds over all references of its key take a piece at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Input, Output, Processor, Record, Stored
from processor.builtin.view.stage_output import BEFORE_RIGHT, LEFT, RIGHT, show_ready
from processor.config import ViewConfig
from processor.wire.view_parts import group_prefix, in_array, member_key, split_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

    from processor.api import Outgoing


REFERENCES_MAX: Final = 250
"""References of one turn: a few milliseconds here, and twenty where the rows are written."""

TURN_MS: Final = 50
"""Time for which that is enough. References go at 5,000 a second at most: more would queue up before the last stage,
and the changes of other rows behind them."""


class _Round:
    """A round, as far as it has come."""

    def __init__(self, after: bytes, offset: int) -> None:
        self.after = after
        """The key of the table behind which the next reference is."""
        self.offset = offset
        """The offset of the change: no position behind it is committed before the round has ended."""
        self.again_offset: int | None = None
        """The offset of a change during the round, after which another round follows; None: there was none. A round is
        not broken off: a partner that changes all the time would keep the last references waiting for ever."""


class Rounds:
    """The rounds of one partition, the oldest first.

    The input position that is committed stays before the change whose round has not ended: a successor begins it again.
    """

    def __init__(self, context: Context, mark: bytes) -> None:
        """Begin with no round.

        Args:
            context: its table has the references.
            mark: begins the members that are references.
        """
        self._context = context
        self._mark = mark
        self._rounds: dict[bytes, _Round] = {}
        self._turn = 0  # The part of time to which the next number belongs.
        self._left = REFERENCES_MAX  # References that may still be named in it.

    def __len__(self) -> int:
        """Number of rounds that have not ended."""
        return len(self._rounds)

    def begin(self, group: bytes, offset: int) -> None:
        """Begin a round over the references of a group, for the change at an offset."""
        current = self._rounds.get(group)
        if current is None:
            self._rounds[group] = _Round(group_prefix(group), offset)
        elif current.again_offset is None:
            current.again_offset = offset

    def next_references(self, now_ms: int) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield groups with the next of their references: the keys of the records that refer."""
        if self._turn != now_ms // TURN_MS:
            self._turn, self._left = now_ms // TURN_MS, REFERENCES_MAX
        while self._rounds and self._left > 0:
            group, current = next(iter(self._rounds.items()))
            piece = self._context.table.scan(current.after, self._left)
            begin = member_key(group, self._mark)
            members = [key for key, _ in piece if key.startswith(begin)]
            yield group, [key[len(begin) :] for key in members]
            if len(members) < self._left:
                del self._rounds[group]
                if current.again_offset is not None:
                    self._rounds[group] = _Round(group_prefix(group), current.again_offset)
            else:
                current.after = members[-1]
            self._left -= max(1, len(members))

    def hold(self) -> None:
        """Keep the committed position before the changes whose rounds have not ended, and show their number."""
        self._context.gauge("rounds", len(self._rounds))
        self._context.hold(min((current.offset for current in self._rounds.values()), default=None))


PARTNERS_BYTES_MAX: Final = 8 << 20
"""Answers of one partition that are kept in memory, bytes."""

_ANSWER_BYTES: Final = 200  # Of one in a dict, besides its texts.

NO_PARTNER: Final = b"[]"
"""The answer to a reference without a partner; the answer with one is an array with its fields."""


class Partners:
    """The answers about keys, by the table of one partition; those asked for lately are in memory.

    Of several partners with one key, the one with the least key counts.
    """

    def __init__(self, context: Context) -> None:
        """Begin with no answer in memory."""
        self._context = context
        self._answers: dict[bytes, bytes] = {}
        self._bytes = 0

    def changed(self, group: bytes) -> None:
        """Forget the answer about a key of which a partner has changed."""
        self._answers.pop(group, None)

    def answer(self, group: bytes) -> bytes:
        """Return the answer about a key: an array with the fields of its partner, or none."""
        answer = self._answers.get(group)
        if answer is None:
            answer = self._read(group)
            size = len(group) + len(answer) + _ANSWER_BYTES
            if self._bytes + size > PARTNERS_BYTES_MAX:
                self._answers, self._bytes = {}, 0
            self._bytes += size  # Counted until all are forgotten, also after a change.
            self._answers[group] = answer
        return answer

    def _read(self, group: bytes) -> bytes:
        prefix = member_key(group, b"")
        for key, stored in self._context.table.scan(prefix + BEFORE_RIGHT, 1):
            if key.startswith(prefix + RIGHT):
                return in_array(stored.value)
        return NO_PARTNER


class ViewJoin(Processor):
    """Answers each reference with its partner, again whenever that changes; its table has both.

    An answer is made of the table alone, and is the whole truth about one reference: a repeated or late one changes
    nothing.
    """

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("parts")
    outputs: ClassVar[tuple[Output, ...]] = (Output("answers", downstream=True),)
    keeps_table: ClassVar[bool] = True

    def init(self, context: Context, settings: BaseModel) -> None:  # noqa: ARG002
        """Begin with no round."""
        self._context = context
        self._rounds = Rounds(context, LEFT)
        self._partners = Partners(context)
        self._answers: dict[int, list[Outgoing]] = {}

    def process(self, records: Sequence[Record]) -> None:
        """Put the records into the table; answer new references, and begin a round for each changed partner."""
        until = self._context.table_until
        changes: dict[bytes, Stored | None] = {}
        references: dict[tuple[bytes, bytes], bool] = {}
        for record in records:
            key = record.key or b""
            try:
                group, member = split_key(key)
            except ValueError as error:
                self._context.reject(record, "undecodable", f"no part of a view: {error}")
                continue
            if record.offset >= until:
                changes[key] = None if record.value is None else Stored(1, record.value)
            if member.startswith(LEFT):
                references[group, member[len(LEFT) :]] = True
            else:
                self._partners.changed(group)
                self._rounds.begin(group, record.offset)
        self._context.table.put_many(changes)
        present = self._context.table.get_many([member_key(group, LEFT + key) for group, key in references])
        for group, key in references:
            is_there = present[member_key(group, LEFT + key)] is not None
            self._answer(group, key, self._partners.answer(group) if is_there else None)
        self._forward()
        self._rounds.hold()

    def punctuate(self, now_ms: int) -> bool:
        """Give the next answers of the rounds, the oldest round first."""
        for group, references in self._rounds.next_references(now_ms):
            partner = self._partners.answer(group)
            for key in references:
                self._answer(group, key, partner)
        self._forward()
        self._rounds.hold()
        show_ready(self._context, is_ready=not self._rounds and self._context.is_at_end)
        return False  # The next answers have their time: it is asked again in each turn.

    def _answer(self, group: bytes, key: bytes, answer: bytes | None) -> None:
        partition = self._context.partition_for(key, "answers")
        self._answers.setdefault(partition, []).append((member_key(key, RIGHT + group), answer, []))

    def _forward(self) -> None:
        for partition, answers in self._answers.items():
            self._context.forward_to("answers", partition, answers)
        self._answers = {}
