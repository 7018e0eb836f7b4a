"""The plug-in `view_join`: where the records of both sides with equal keys meet, and each reference is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import Context, Input, Output, Processor, Record, Stored
from processor.builtin.view.join_keys import BEFORE_RIGHT, LEFT, RIGHT
from processor.builtin.view.rounds import Rounds
from processor.builtin.view.row_writer import show_ready
from processor.config import ViewConfig
from processor.wire.view_parts import group_of, in_array, member_key, member_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Outgoing

NO_PARTNER: Final = b"[]"
"""The answer to a reference without a partner; the answer with one is an array with its fields."""


class ViewJoin(Processor):
    """Answers each reference with its partner, again whenever that changes; its table has both.

    An answer is made of the table alone, and is the whole truth about one reference: a repeated or late one changes
    nothing. Of several partners with one key, the one with the least key counts.
    """

    settings_type = ViewConfig
    input: ClassVar[Input] = Input("parts")
    outputs: ClassVar[tuple[Output, ...]] = (Output("answers", downstream=True),)
    keeps_table: ClassVar[bool] = True

    def init(self, context: Context, settings: BaseModel) -> None:  # noqa: ARG002
        """Begin with no round."""
        self._context = context
        self._rounds = Rounds(context, LEFT)
        self._answers: dict[int, list[Outgoing]] = {}

    def process(self, records: Sequence[Record]) -> None:
        """Put the records into the table; answer new references, and begin a round for each changed partner."""
        until = self._context.table_until
        changes: dict[bytes, Stored | None] = {}
        references: dict[tuple[bytes, bytes], bool] = {}
        for record in records:
            key = record.key or b""
            try:
                group, member = group_of(key), member_of(key)
            except ValueError as error:
                self._context.reject(record, "undecodable", f"no part of a view: {error}")
                continue
            if record.offset >= until:
                changes[key] = None if record.value is None else Stored(1, record.value)
            if member.startswith(LEFT):
                references[group, member[len(LEFT) :]] = True
            else:
                self._rounds.begin(group, record.offset)
        self._context.table.put_many(changes)
        present = self._context.table.get_many([member_key(group, LEFT + key) for group, key in references])
        partners: dict[bytes, bytes] = {}
        for group, key in references:
            answer = None
            if present[member_key(group, LEFT + key)] is not None:
                if group not in partners:
                    partners[group] = partner_of(self._context, group)
                answer = partners[group]
            self._answer(group, key, answer)
        self._forward()
        self._rounds.hold()

    def punctuate(self, now_ms: int) -> bool:
        """Give the next answers of the rounds, the oldest round first."""
        for group, references in self._rounds.next_references(now_ms):
            partner = partner_of(self._context, group)
            for key in references:
                self._answer(group, key, partner)
        self._forward()
        self._rounds.hold()
        show_ready(self._context, is_ready=not self._rounds and self._context.stream_time_ms == now_ms)
        return False  # The next answers have their time: it is asked again in each turn.

    def _answer(self, group: bytes, key: bytes, answer: bytes | None) -> None:
        partition = self._context.partition_for(key, "answers")
        self._answers.setdefault(partition, []).append((member_key(key, RIGHT + group), answer, []))

    def _forward(self) -> None:
        for partition, answers in self._answers.items():
            self._context.forward_to("answers", partition, answers)
        self._answers = {}


def partner_of(context: Context, group: bytes) -> bytes:
    """Return the answer about a key, by the table: an array with the fields of its partner, or none."""
    prefix = member_key(group, b"")
    for key, stored in context.table.scan(prefix + BEFORE_RIGHT, 1):
        if key.startswith(prefix + RIGHT):
            return in_array(stored.value)
    return NO_PARTNER
