"""The plug-in `view_rows`: the last stage of a join, where a record and the answers about its partners are a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.api import Context, Record, Stored
from processor.builtin.view import compiled_stages
from processor.builtin.view.compiled_stages import compiled_rows
from processor.builtin.view.definitions import fields_of
from processor.builtin.view.join import Partners, Rounds
from processor.builtin.view.stage_output import KEPT, LEFT, RIGHT, answer_member, meeting, show_ready
from processor.builtin.view.start_pass import LastStage
from processor.codec import load_codec
from processor.config import ViewConfig
from processor.filter.syntax_tree import JOINED_MARK
from processor.wire.view_parts import member_key, split_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from processor.api import Value

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__

CHANGED_MAX: Final = 1_000
"""Changed rows at which they are written before the commit."""


class ViewRows(LastStage):
    """Writes a row for each record of the underlying, once it has the answers for the keys that the record has now.

    Until then the row stays as it was: a row whose record has just changed its key is never without a partner that it
    has. Answers about former keys are not looked at.
    """

    _compile = staticmethod(fields_of)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the definition; all rows are compared soon."""
        assert isinstance(settings, ViewConfig)
        self._fields = fields_of(context.name, settings)
        # Elsewhere partners are there or not, and no answer is waited for.
        self._has_answers = settings.join_method == "repartition"
        self._has_partners = settings.join_method == "broadcast"
        self._rounds = Rounds(context, KEPT)
        self._partners = Partners(context)
        self._topics = [each.topic for each in settings.join]
        self._json = load_codec("json")
        answer_mark = b"" if self._has_partners else RIGHT
        has_keys = self._has_answers or self._has_partners
        self._plain = compiled_rows(self._fields, context.codec, self._topics, answer_mark, has_keys=has_keys)
        self._begin(context, settings)

    def process(self, records: Sequence[Record]) -> None:
        """Put the parts into the table."""
        if self._as_of is not None:
            self._as_of.took(records)
        until = self._context.table_until
        changes: dict[bytes, Stored | None] = {}
        for record in self._take_parts(records, changes):
            key = record.key or b""
            try:
                group, member = split_key(key)
            except ValueError as error:
                self._context.reject(record, "undecodable", f"no part of a view: {error}")
                continue
            if not self._has_partners or member == LEFT:
                self._changed[group] = None
            elif member.startswith(KEPT):
                self._changed[member[len(KEPT) :]] = None  # Its record may have come, and its partner changed, before.
            else:
                self._partners.changed(group)
                self._rounds.begin(group, record.offset)
            if record.offset >= until:
                changes[key] = None if record.value is None else Stored(1, record.value)
        self._context.table.put_many(changes)
        self._start.took(records[-1].offset)
        self._rounds.hold()
        if len(self._changed) >= CHANGED_MAX:
            self.flush()

    def _take_parts(self, records: Sequence[Record], changes: dict[bytes, Stored | None]) -> Sequence[Record]:
        """Take the records whose groups are all that counts; returns the others."""
        if self._has_partners or not compiled_stages.has_compiled or records[0].offset < self._context.table_until:
            return records
        try:
            parts = compiled_stages.groups_of_parts(records)
        except ValueError:
            return records
        for record, group in parts:
            value = record.value
            self._changed[group] = None
            changes[record.key or b""] = None if value is None else _new(Stored, (1, value, 0, -1, b"", b""))
        return ()

    def punctuate(self, now_ms: int) -> bool:
        """Go through a part of the table and the rows, until all were compared once."""
        self._changed.update(dict.fromkeys(self._start.next_groups()))
        referring = [key for _, keys in self._rounds.next_references(now_ms) for key in keys]
        self._changed.update(dict.fromkeys(referring))
        self._rounds.hold()
        if self._start.is_due or referring:
            self.flush()  # Without input there is no commit that would ask for it.
        is_ready = self._start.is_done and not self._rounds and self._context.is_at_end
        show_ready(self._context, is_ready=is_ready)
        return self._start.has_more

    def flush(self) -> None:
        """Write the rows of the changed records."""
        if not self._start.flushes(has_changed=bool(self._changed)):
            return
        changed, self._changed = list(self._changed), {}
        table = self._context.table
        places = {key: member_key(key, LEFT) for key in changed}
        lefts = table.get_many([*places.values()])
        records = {key: left.value for key, place in places.items() if (left := lefts[place]) is not None}
        rows: dict[bytes, Value | None] = {key: None for key in changed if key not in records}
        wanted, decoded = self._read(records)
        answers = self._read_answers(dict.fromkeys(member for members in wanted.values() for _, member in members))
        parsed: dict[bytes, Value] = {}  # A changed partner has many references, and all get the same answer.
        for key, part in records.items():
            found = {topic: answers[member] for topic, member in wanted[key]}
            if self._has_answers and None in found.values():
                continue  # An answer is on its way, and comes here.
            partners = {topic: answer for topic, answer in found.items() if answer is not None}
            row = None if self._plain is None or key in decoded else self._plain.row(part, partners)
            if row is None:
                record = decoded[key] if key in decoded else self._json.decode_own(part)[1]
                row = self._row(record, partners, parsed)
            rows[key] = row
        self._write(rows)
        self._start.wrote(are_all=True)

    def _read(self, parts: Mapping[bytes, bytes]) -> tuple[dict[bytes, list[tuple[str, bytes]]], dict[bytes, Value]]:
        """Return the places of the answers about the partners in each part, and the records that had to be parsed."""
        wanted: dict[bytes, list[tuple[str, bytes]]] = {}
        others: dict[bytes, bytes] = {}
        for key, part in parts.items():
            places = None if self._plain is None else self._plain.answers(key, part)
            if places is None:
                others[key] = part
            else:
                wanted[key] = places
        decoded: dict[bytes, Value] = {}
        for key, (keys, record) in zip(others, self._json.decode_own_many([*others.values()]), strict=True):
            wanted[key], decoded[key] = self._answers_of(key, keys), record
        return wanted, decoded

    def _row(self, record: Value, partners: Mapping[str, bytes], parsed: dict[bytes, Value]) -> Value:
        """Compute the row of a record; `parsed` keeps the answers about partners."""
        for topic, answer in partners.items():
            if answer not in parsed:
                parsed[answer] = self._json.decode_own(answer)
            for partner in parsed[answer]:
                record[JOINED_MARK + topic] = partner
        return self._fields.row(record)

    def _answers_of(self, key: bytes, keys: Sequence[str | None]) -> list[tuple[str, bytes]]:
        """Return the joined topics of which a record may have a partner, each with the place of the answer about it."""
        joins = [(place, *pair) for place, pair in enumerate(zip(self._topics, keys, strict=True), 1)]
        if self._has_partners:
            return [(topic, meeting(place, join)) for place, topic, join in joins if join is not None]
        return [
            (topic, member_key(key, answer_member(place, join if self._has_answers else "")))
            for place, topic, join in joins
            if join is not None
        ]

    def _read_answers(self, places: Iterable[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the answers at these places; None: there is none."""
        if self._has_partners:
            return {group: self._partners.answer(group) for group in places}
        stored = self._context.table.get_many(list(places))
        return {member: None if answer is None else answer.value for member, answer in stored.items()}
