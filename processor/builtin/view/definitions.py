"""The compiled definition of a view: checked before anything starts, and known again by its fingerprint."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from processor.errors import ConfigurationError, DefinitionChanged, FilterError
from processor.filter.aggregate import FUNCTIONS, compile_aggregates, compile_fields
from processor.filter.filter import compile_selection
from processor.filter.functions import BUILT_IN
from processor.filter.parse import called_functions, named_fields, syntax_error
from processor.values.pointer import names
from processor.wire.view_parts import AWAY_WORD, DEFINITION_MARK, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.api import Codec, Context
    from processor.config import ViewConfig
    from processor.filter import Filter
    from processor.filter.aggregate import AggregateDefinition, FieldsDefinition


def view_name(stage: str) -> str:
    """Return the view of a stage: the part of its family's name before the dot."""
    return stage.partition(".")[0]


def compiled_filter(name: str, text: str | None) -> Filter | None:
    """Return the compiled filter of a view; None: it has none.

    Raises:
        ConfigurationError: it cannot be used.
    """
    return compile_selection(f"views.{name}.filter", text, changes_with="a view changes with its topics alone")


def aggregates_of(stage: str, settings: ViewConfig) -> AggregateDefinition:
    """Compile the aggregates of a view.

    Raises:
        ConfigurationError: with the setting, and the place in it.
    """
    try:
        definition = compile_aggregates(settings.group_by or {}, settings.fields, settings.having)
    except ConfigurationError as error:
        raise ConfigurationError(f"views.{view_name(stage)}: {error}") from None
    check_having(view_name(stage), settings)
    return definition


def check_partial_aggregation(stage: str, settings: ViewConfig) -> None:
    """Refuse partial aggregation of a view whose records do not add up, or cannot be computed again.

    Raises:
        ConfigurationError: with the reason, and the remedy.
    """
    definition = aggregates_of(stage, settings)
    selected = compiled_filter(view_name(stage), settings.filter)
    if problem := _obstacle(definition, settings, uses_metadata=selected is not None and selected.uses_metadata):
        raise ConfigurationError(f"views.{view_name(stage)}.partial_aggregation: {problem}; remove this setting")


def _obstacle(definition: AggregateDefinition, view: ViewConfig, *, uses_metadata: bool) -> str | None:
    """Return the reason for which a view cannot combine; None: it can.

    A record's former value is computed again from its former state, of which the metadata are not kept.

    Args:
        definition: its aggregates.
        view: its settings.
        uses_metadata: whether its filter uses metadata.
    """
    if definition.not_combined:
        return f"{', '.join(definition.not_combined)} of parts of a group are not that of the group"
    if definition.uses_metadata or uses_metadata:
        return "the metadata of a record's former state are not kept"
    texts = [*view.fields.values(), *([] if view.filter is None else [view.filter])]
    if foreign := {name for text in texts for name in called_functions(text)} - FUNCTIONS - BUILT_IN.keys():
        return f"{', '.join(sorted(foreign))} may have another value for the same record later"
    return None


def fields_of(stage: str, settings: ViewConfig) -> FieldsDefinition:
    """Compile the fields of a projection or a join.

    Raises:
        ConfigurationError: with the setting, and the place in it.
    """
    try:
        return compile_fields(settings.fields, [each.topic for each in settings.join])
    except ConfigurationError as error:
        raise ConfigurationError(f"views.{view_name(stage)}: {error}") from None


def check_source(stage: str, settings: ViewConfig, topic: str, codec: Codec | None) -> None:
    """Refuse a filter that cannot be used, records without fields, and fields that the records of an input cannot have.

    Raises:
        ConfigurationError: with the setting, and the remedy.
    """
    compiled_filter(view_name(stage), settings.filter)
    if codec is not None and not codec.can_delta:
        raise ConfigurationError(
            f"views.{view_name(stage)}: the records of its inputs need fields, and this message type has none"
        )
    check_known_fields(view_name(stage), settings, topic, codec)


def check_known_fields(view: str, settings: ViewConfig, topic: str, codec: Codec | None) -> None:
    """Refuse a field that no record of an input can have: the rows of another view, and records with a schema.

    Args:
        view: the name of the view.
        settings: its definition.
        topic: the input.
        codec: the message type of its records; None: it is not known yet.

    Raises:
        ConfigurationError: with the setting, the place in it, and the fields that there are.
    """
    members = settings.members_of(topic)
    for named in _named(settings, topic):
        if members is not None:
            if named.member not in members:
                raise named.error(view, f"the rows of {topic!r} have no field /{named.member}; {_hint(named, members)}")
        elif codec is not None and codec.field_type((named.member,)).kinds == frozenset():
            raise named.error(view, f"the schema of {topic!r} has no field /{named.member}")


def check_having(view: str, settings: ViewConfig) -> None:
    """Refuse a field in `having` that the rows do not have.

    Raises:
        ConfigurationError: with the place, and the fields that there are.
    """
    for named in _in_text("having", settings.having or "TRUE", None):
        if named.member not in settings.members:
            raise named.error(view, f"its rows have no field /{named.member}; {_hint(named, settings.members)}")


class _Named(NamedTuple):
    """A field that the definition names."""

    setting: str
    """The setting."""
    member: str
    """The member of the record."""
    text: str
    """The text of the setting."""
    at: int | None
    """The place in the text; None: the text is the field alone."""

    def error(self, view: str, problem: str) -> ConfigurationError:
        noun = "expression" if self.setting.startswith("fields") else "filter"
        place = problem if self.at is None else syntax_error(self.text, self.at, problem, noun)
        return ConfigurationError(f"views.{view}.{self.setting}: {place}")


def _hint(named: _Named, members: frozenset[str]) -> str:
    close = get_close_matches(named.member, members, n=1)
    return f"did you mean /{close[0]}?" if close else f"there are {', '.join(f'/{one}' for one in sorted(members))}"


def _named(settings: ViewConfig, topic: str) -> Iterator[_Named]:
    """Yield each field of an input that the definition names."""
    is_underlying = topic == settings.underlying
    joined = None if is_underlying else topic
    for pointer, text in settings.fields.items():
        yield from _in_text(f"fields: {pointer}", text, joined)
    if is_underlying and settings.filter is not None:
        yield from _in_text("filter", settings.filter, None)
    pointers = [("group_by", pointer) for pointer in settings.group_by or {} if is_underlying]
    for each in settings.join:
        if is_underlying or each.topic == topic:
            pointers += [("join.on", pointer) for pointer in (each.on if is_underlying else each.on.values())]
    for setting, pointer in pointers:
        yield _Named(setting, names(pointer)[0], pointer, None)


def _in_text(setting: str, text: str, joined: str | None) -> Iterator[_Named]:
    """Yield the fields that a text names; none of one that cannot be parsed, which is reported elsewhere."""
    try:
        fields = named_fields(text)
    except FilterError:
        return
    for field in fields:
        if field.topic == joined:
            yield _Named(setting, field.member, text, field.at)


def check_fingerprint(context: Context, settings: ViewConfig) -> None:
    """Note the definition of a new view, and refuse one that is not that of the view's rows.

    Raises:
        DefinitionChanged: with the choice.
    """
    known, current = context.marks.get(DEFINITION_MARK), fingerprint(settings)
    if known is None:
        context.marks.put(DEFINITION_MARK, current)
    elif (known := known.removesuffix(AWAY_WORD)) != current:
        name = view_name(context.name)
        former = not settings.partial_aggregation
        of_other_parts = settings.model_copy(update={"partial_aggregation": former})
        if known == fingerprint(of_other_parts):
            parts = "one for each group and partition" if former else "one for each record"
            # Combined parts have no `as_of`, see `ViewConfig`.
            keep = (
                "remove `as_of`" if former and settings.as_of else f"write `partial_aggregation: {str(former).lower()}`"
            )
            raise DefinitionChanged(
                f"views.{name}: its rows were computed from other parts, {parts}, "
                f"with another `partial_aggregation`; {keep} to keep them, "
                f"or stop its workers and run `sowstream view rebuild {name}`, which deletes the rows and builds them "
                "again"
            )
        if known in [fingerprint(each, keys_version=1) for each in (settings, of_other_parts)]:
            raise DefinitionChanged(
                f"views.{name}: an older version of Sowstream wrote its rows, for which 1 and 1.0 were two values and "
                f'1 and "1" were one; stop its workers and run `sowstream view rebuild {name}`, which deletes the rows '
                "and builds them again"
            )
        raise DefinitionChanged(
            f"views.{name}: its definition has changed, and its rows are those of the former one; set it back, or stop "
            f"its workers and run `sowstream view rebuild {name}`, which deletes the rows and builds them again"
        )


def note_away_members(context: Context) -> None:
    """Note that the state of this partition has members with their partition, if it is not noted yet."""
    known = context.marks.get(DEFINITION_MARK)
    assert known is not None, "the stage has begun"
    if not known.endswith(AWAY_WORD):
        context.marks.put(DEFINITION_MARK, known + AWAY_WORD)
