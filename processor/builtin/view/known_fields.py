"""Checks that the records of a view's inputs can have the fields that its definition names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from processor.errors import ConfigurationError, FilterError
from processor.filter.parse import named_fields, syntax_error
from processor.values.pointer import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.api import Codec
    from processor.config import ViewConfig


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
