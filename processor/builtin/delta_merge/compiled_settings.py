"""Compiles the settings of a topic: for each partition, and once as a check before a worker starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.builtin.delta_merge.messages import EnrichAll, PreprocessAll, enriching, preprocessing
from processor.errors import ConfigurationError
from processor.merge import KeyFields, MergePolicy, compile_merge, compile_rules

if TYPE_CHECKING:
    from processor.api import Codec
    from processor.config import TopicConfig
    from processor.merge import Merge, Rules


class CompiledSettings(NamedTuple):
    """A topic's settings as functions."""

    key: KeyFields
    """The key fields; none where the key is explicit."""
    policy: MergePolicy
    """Depth and rules of merging."""
    merge: Merge
    """The function that merges a delta by that policy."""
    rules: Rules | None
    """Sequence groups and merge rules; None without any."""
    preprocess: PreprocessAll | None
    """The preprocessors as one; None without any."""
    enrich: EnrichAll | None
    """The enrichers as one; None without any."""

    @property
    def prepares(self) -> bool:
        """True if sequence groups or enrichers change updates before the merge."""
        return self.enrich is not None or (self.rules is not None and self.rules.has_groups)


def compile_settings(name: str, settings: TopicConfig, codec: Codec | None) -> CompiledSettings:
    """Compile a topic's settings.

    Args:
        name: the topic's.
        settings: its settings.
        codec: its message type; None: settings that depend on it are not checked.

    Raises:
        ConfigurationError: a plug-in or a rule is unknown or refuses its settings, or two settings do not go together.
    """
    if settings.key_fields and not settings.has_fields:  # Every record would be rejected for its key.
        raise ConfigurationError(
            f"{name}: messages of type {settings.message_type!r} are bytes and have no fields to make a key of; "
            "set key: explicit"
        )
    if (settings.preprocess or settings.enrich) and not settings.has_fields:
        raise ConfigurationError(
            f"{name}: messages of type {settings.message_type!r} are bytes and have no fields to change; take out its "
            f"{'preprocess' if settings.preprocess else 'enrich'}"
        )
    policy = MergePolicy(settings.null_policy, settings.merge_depth)
    try:
        type_of = None if codec is None else codec.field_type
        key = KeyFields(settings.key_fields, type_of)
        rules = compile_rules(
            [(group.by, group.fields) for group in settings.sequence_groups],
            settings.merge_rules,
            key_fields=settings.key_fields,
            policy=policy,
            type_of=type_of,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if rules is not None and codec is not None and not codec.can_delta:
        raise ConfigurationError(
            f"{name}: messages of type {settings.message_type!r} are published whole; "
            "take out its merge_rules and sequence_groups"
        )
    return CompiledSettings(
        key,
        policy,
        compile_merge(policy),
        rules,
        preprocessing(settings, name) if settings.preprocess else None,
        enriching(settings, name) if settings.enrich else None,
    )
