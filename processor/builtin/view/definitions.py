"""The compiled definition of a view, and the checks before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.builtin.view.known_fields import check_having, check_known_fields
from processor.builtin.view.source import compiled_filter
from processor.errors import ConfigurationError
from processor.filter.aggregate import FUNCTIONS, compile_aggregates, compile_fields
from processor.filter.functions import BUILT_IN
from processor.filter.parse import called_functions

if TYPE_CHECKING:
    from processor.api import Codec
    from processor.config import ViewConfig
    from processor.filter.aggregate import AggregateDefinition, FieldsDefinition


def view_name(stage: str) -> str:
    """Return the view of a stage: the part of its family's name before the dot."""
    return stage.partition(".")[0]


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

    A record's former value is computed again from its former state, of which the metadata are not kept.

    Raises:
        ConfigurationError: with the reason, and the remedy.
    """
    definition = aggregates_of(stage, settings)
    selected = compiled_filter(view_name(stage), settings.filter)
    texts = [*settings.fields.values(), *([] if settings.filter is None else [settings.filter])]
    called = {name for text in texts for name in called_functions(text)}
    problem = None
    if definition.not_combined:
        problem = f"{', '.join(definition.not_combined)} of parts of a group are not that of the group"
    elif definition.uses_metadata or (selected is not None and selected.uses_metadata):
        problem = "the metadata of a record's former state are not kept"
    elif foreign := called - FUNCTIONS - BUILT_IN.keys():
        problem = f"{', '.join(sorted(foreign))} may have another value for the same record later"
    if problem is not None:
        raise ConfigurationError(f"views.{view_name(stage)}.partial_aggregation: {problem}; remove this setting")


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
