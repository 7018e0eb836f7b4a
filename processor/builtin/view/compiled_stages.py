"""The compiled parts of the stages of views: for simple definitions, where they could be compiled."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

from processor.api import Stored
from processor.builtin.view.stage_output import plain_value
from processor.filter.aggregate import Contribution, GroupIncomplete
from processor.filter.aggregate.combining import plain_members
from processor.filter.aggregate.moments import Moments
from processor.values.pointer import names
from processor.wire.view_parts import group_of

try:
    from processor.builtin.view.plain_groups import PlainGroups, groups_of
    from processor.builtin.view.plain_parts import PlainContributions, PlainRows, PlainSides
    from processor.builtin.view.plain_records import PlainRecords

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Codec, Record, Value
    from processor.config import ViewConfig
    from processor.filter.aggregate import AggregateDefinition, FieldsDefinition
    from processor.filter.aggregate.group import Aggregate
    from processor.wire.view_parts import GroupTotals

# Stored(...) and Contribution(...) go through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


def groups_of_parts(records: Sequence[Record]) -> list[tuple[Record, bytes]]:
    """Return each record with its group.

    Raises:
        ValueError: no stage of a view wrote one of them.
    """
    if has_compiled:
        return groups_of(records)
    return [(record, group_of(record.key or b"")) for record in records]


def compiled_groups(definition: AggregateDefinition, settings: ViewConfig, codec: Codec) -> PlainGroups | None:
    """Return the compiled groups; None if the definition is not simple, or they could not be compiled."""
    if not has_compiled or plain_members(definition, settings) is None:
        return None
    states = definition.new_group().states
    fields = None if codec.json_text is None else definition.simple_fields
    texts = None
    if fields is not None:
        texts = [
            (json.dumps(name).encode() + b":", "" if each is None else each.function, _place_of(each, states))
            for name, each in fields
        ]
        if any(b"\\" in name for name, _, _ in texts):
            texts = None
    return PlainGroups([kind for _, kind in states], texts, partial(_number_text, codec), Stored)


def _place_of(aggregate: Aggregate | None, states: Sequence[tuple[int, str]]) -> int:
    """Return the place of an aggregate's value behind the members of a part; -1: it is the number of these."""
    if aggregate is None or aggregate.function == "COUNT(*)":
        return -1
    kind = aggregate.function if aggregate.function in {"MIN", "MAX"} else "moments"
    return states.index((aggregate.argument, "count" if aggregate.function == "COUNT" else kind))


def _number_text(codec: Codec, function: str, count: int, total: int, decimals: int) -> bytes | None:
    """Return the text of a sum or a mean of so many numbers; None: it has more digits than a double."""
    moments = Moments(has_squares=False)
    moments.combine((count, total, decimals, 0))
    value = moments.sum() if function == "SUM" else moments.mean()
    return None if isinstance(value, Decimal) else codec.encode_decoded(value)


def compiled_contributions(
    definition: AggregateDefinition, settings: ViewConfig, codec: Codec, partition: int
) -> PlainContributions | None:
    """Return the compiled making of contributions; None: there is none, or the view needs more than some members."""
    members = definition.simple_members
    if not has_compiled or codec.json_text is None or settings.filter is not None or members is None:
        return None
    group, *arguments = [json.dumps(member).encode() for member in members]
    return PlainContributions(group, arguments, partition)


def compiled_rows(
    fields: FieldsDefinition, codec: Codec, topics: Sequence[str], answer_mark: bytes, *, has_keys: bool
) -> PlainRows | None:
    """Return the compiled making of rows; None: there is none, or a field is no member of a record."""
    members = fields.simple_members
    if not has_compiled or codec.json_text is None or members is None:
        return None
    texts = [(json.dumps(name).encode() + b":", topic, json.dumps(member).encode()) for name, topic, member in members]
    # A canonical text has no other names.
    if any(b"\\" in name + member for name, _, member in texts):
        return None
    return PlainRows(texts, topics, answer_mark, has_keys)


def compiled_sides(settings: ViewConfig, members: Sequence[str], codec: Codec) -> PlainSides | None:
    """Return the compiled making of parts; None: there is none, the view has a filter, or a join has several fields."""
    fields = [names(pointer) for each in settings.join for pointer in each.on]
    is_simple = len(fields) == len(settings.join) and all(len(field) == 1 for field in fields)
    if not has_compiled or codec.json_text is None or settings.filter is not None or not is_simple:
        return None
    keys, texts = [json.dumps(name).encode() for (name,) in fields], [json.dumps(name).encode() for name in members]
    return PlainSides(keys, texts)


def compiled_records(
    definition: AggregateDefinition, settings: ViewConfig, codec: Codec, partition: int, kept_max: int, room_max: int
) -> PlainRecords | None:
    """Return the compiled aggregation; None if the definition is not simple, or it could not be compiled."""
    members = plain_members(definition, settings)
    if not has_compiled or codec.json_text is None or members is None:
        return None
    return PlainRecords(
        group_name=members[0],
        names=members[1:],
        states=definition.new_group().states,
        partition=partition,
        stored=Stored,
        kept_max=kept_max,
        room_max=room_max,
    )


def fold_parsed(
    records: Sequence[Record],
    rows: dict[bytes, Stored | None],
    changes: dict[bytes, Stored | None],
    changed: dict[bytes, None],  # noqa: ARG001
    added: list[Record],
    removed: list[tuple[bytes, bytes]],
    after: bytes | None,
    is_complete: bool,
) -> None:
    """`PlainRecords.fold` where no record is plain."""
    for record in records:
        key, value = record[0], record[1]
        if key is None:
            added.append(record)
            continue
        stored = rows.get(key)
        if is_complete or (after is not None and key <= after):
            if value is not None:
                added.append(record)
            if stored is not None:
                removed.append((key, stored[1]))
        rows[key] = changes[key] = None if value is None else _new(Stored, (1, value, 0, -1, b"", b""))


def plain_part(
    states: Sequence[tuple[int, str]], place: tuple[int, int, int], key: bytes, totals: GroupTotals
) -> Contribution:
    """Return the part of a group of plain records.

    Raises:
        GroupIncomplete: an extreme is not known now.
    """
    members, sums, extremes = totals
    nearest = iter([values for _, values in extremes])
    partials: list[Value] = []
    for argument, kind in states:
        if kind in {"count", "moments"}:
            partials.append(sums[argument][0] if kind == "count" else [*sums[argument], 0])
            continue
        values = next(nearest)
        if not values and sums[argument][0]:
            raise GroupIncomplete
        partials.append([1, _number_of(*values[-1]), None, None] if values else [0, None, None, None])
    return _new(Contribution, (place, (plain_value(key.decode()),), (members, *partials)))


def _number_of(value: int, decimals: int) -> Value:
    """Return a number as its record has it: one with decimals is a double."""
    return float(f"{value}e-{decimals}") if decimals else value
