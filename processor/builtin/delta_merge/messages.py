"""Parses the messages of a topic, and calls third parties' functions between message and merge.

These functions are preprocessors and enrichers. Merged topics and topics without a SOW do the same here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, get_args

from processor.api import Command, Incomplete, Preprocessed, RecordRejected, Value
from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError, Stop, unknown_name
from processor.wire.command import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.api import Codec, Record
    from processor.config import StepConfig, TopicConfig
    from processor.wire.command import CommandHeaders


PREPROCESSORS: Final = "sowstream.preprocessors"
"""The entry-point group: the object is a function that takes the settings by keyword and returns a `Preprocess`."""

ENRICHERS: Final = "sowstream.enrichers"
"""The entry-point group of functions that return an `Enrich`."""

_COMMANDS: Final[tuple[str, ...]] = get_args(Command)

After: TypeAlias = Callable[[Value], Value]
"""The record as a message would leave it, rules and header `remove` included."""

EnrichAll: TypeAlias = Callable[[Value, Value | None, bool, After | None], Value]
"""The enrichers of a topic as one function of the message, the stored record, whether the message is a delta, and the
record as a message would leave it; None where that is the message over the stored record."""


class Hook(NamedTuple):
    """One preprocessor or enricher of a topic."""

    name: str
    """Its name in the entry-point group."""
    function: Callable[..., Value]
    """The function that it made with its settings: a `Preprocess` or an `Enrich`."""
    is_ours: bool
    """True if it comes with the product: the objects in its results are of this message alone."""

    @property
    def takes_is_delta(self) -> bool:
        """True for the product's own enricher: it takes two more arguments, and leaves the stored record as it is."""
        # By attribute: its module brings the filter language, which most topics and Spark's executors do without.
        return getattr(self.function, "takes_is_delta", False)


class PreprocessAll:
    """The preprocessors of a topic as one function of the message and its command."""

    __slots__ = ("_hooks", "needs_key")

    needs_key: str | None
    """The reason to reject a message that came without a Kafka key; None: its key fields make the key."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        """Create it from the preprocessors, in order."""
        self._hooks = hooks
        self.needs_key = next((why for hook in hooks if (why := getattr(hook.function, "needs_key", None))), None)

    def __call__(self, message: Value, command: Command) -> Preprocessed:
        """Return the message and the command that the preprocessors make.

        Raises:
            RecordRejected: one of them fails on the message.
        """
        incomplete: Incomplete | None = None
        for hook in self._hooks:
            result = _run(hook, message)
            if isinstance(result, Preprocessed):
                incomplete = result if isinstance(result, Incomplete) else incomplete
                result, command = result
                if command not in _COMMANDS:
                    raise RecordRejected(
                        "plugin_failed",
                        f"{hook.name} returned the command {command!r:.100}; known: {', '.join(_COMMANDS)}",
                    )
            message = _object(hook, result)
        if incomplete is None:
            return Preprocessed(message, command)
        return Incomplete.of(message, command, incomplete.lacking, is_stored=incomplete.is_stored)


def preprocessing(settings: TopicConfig, topic: str) -> PreprocessAll:
    """The preprocessors of a topic as one function.

    Raises:
        ConfigurationError: one is not installed, does not take its settings, or needs other settings of the topic.
    """
    hooks = [_load(PREPROCESSORS, "preprocessor", config, settings, topic) for config in settings.preprocess]
    _check_needs(hooks, settings, topic)
    return PreprocessAll(hooks)


def enriching(settings: TopicConfig, topic: str) -> EnrichAll:
    """Return the enrichers of a topic as one function, which rejects the message that one of them fails on.

    Raises:
        ConfigurationError: as `preprocessing`.
    """
    hooks = [_load(ENRICHERS, "enricher", config, settings, topic) for config in settings.enrich]
    if len(hooks) == 1 and hooks[0].takes_is_delta:
        return hooks[0].function

    def enrich(message: Value, previous: Value | None, is_delta: bool, after: After | None = None) -> Value:
        for hook in hooks:
            if hook.takes_is_delta:
                message = hook.function(message, previous, is_delta, after)  # It leaves the stored record as it is.
                continue
            # Each gets its own copy: a hook may change it, and the next one must see the record.
            previous_copy = previous if hook is hooks[-1] else copy.deepcopy(previous)
            message = _object(hook, _run(hook, message, previous_copy))
        return message

    return enrich


def _run(hook: Hook, *arguments: Value) -> Value:
    try:
        return hook.function(*arguments)
    except (RecordRejected, Stop):
        raise
    except Exception as error:
        raise RecordRejected("plugin_failed", f"{hook.name} raised {type(error).__name__}: {error}") from error


def _object(hook: Hook, message: Value) -> Value:
    """Check a hook's result, which must be an object; of a third party's hook, a copy: the merge changes it."""
    if type(message) is not dict:
        raise RecordRejected("plugin_failed", f"{hook.name} returned {kind_of(message)}; a message is an object")
    if hook.is_ours:
        return message
    try:
        return _own(message)
    except RecursionError:
        raise RecordRejected("plugin_failed", f"{hook.name} returned an object that never ends") from None


def _own(value: Value) -> Value:
    """A copy that shares no object or array, neither with the hook's own nor within itself."""
    if type(value) is dict:
        return {name: _own(member) for name, member in value.items()}
    return [_own(item) for item in value] if type(value) is list else value


def _check_needs(hooks: Sequence[Hook], settings: TopicConfig, topic: str) -> None:
    """Refuse settings of a topic under which one of its preprocessors would give wrong records."""
    for hook in hooks:
        needs: Mapping[str, object] = getattr(hook.function, "needs", {})
        for name, value in needs.items():
            if (configured := getattr(settings, name)) != value:
                raise ConfigurationError(
                    f"{topic}: preprocessor {hook.name!r} needs {name}: {value}, and the topic has {name}: "
                    f"{configured}; change that, or the preprocessor's own settings"
                )


def _load(group: str, noun: str, config: StepConfig, settings: TopicConfig, topic: str) -> Hook:
    name = config.use
    installed = installed_names(group)
    if name not in installed:
        raise ConfigurationError(f"{topic}: {unknown_name(noun, name, installed)}; is its package installed?")
    point = find_installed(group, noun, name)
    try:
        factory = load_installed(point, noun)
    except ConfigurationError as error:
        raise ConfigurationError(f"{topic}: {error}") from error
    try:
        function = factory(**config.settings, **_merge_settings(factory, settings))
    except ConfigurationError as error:
        raise ConfigurationError(f"{topic}: {noun} {name!r}: {error}") from error
    except Exception as error:
        raise ConfigurationError(f"{topic}: {noun} {name!r} does not take its settings: {error}") from error
    if not callable(function):
        raise ConfigurationError(f"{topic}: {noun} {name!r} ({point.value}) made no function of its settings")
    return Hook(name, function, point.value.startswith("processor."))


def _merge_settings(factory: object, settings: TopicConfig) -> dict[str, Any]:
    """The settings by which deltas merge, for a factory that asks for them."""
    if not getattr(factory, "takes_merge_settings", False):
        return {}
    asked = ("null_policy", "merge_depth", "merge_rules")
    return {name: getattr(settings, name) for name in asked}


class Messages:
    """The messages of one topic."""

    def __init__(self, codec: Codec, preprocess: PreprocessAll | None) -> None:
        """Create it from the topic's message type and its preprocessors, None without any."""
        self._codec = codec
        self._preprocess = preprocess

    def read(self, record: Record, request: CommandHeaders) -> Preprocessed:
        """The body and the command of a record with a value.

        Raises:
            RecordRejected: the message cannot be parsed, or a preprocessor rejects it.
        """
        value, command = record.value, request.command
        assert value is not None
        if self._codec.uses_headers:
            body = self._codec.decode_command(value, record.headers or [], is_delta=command == "delta_publish")
        else:
            body = self._codec.decode(value)
        if self._preprocess is None:
            return Preprocessed(body, command)
        if type(body) is not dict:
            raise RecordRejected("not_an_object", f"the message is {kind_of(body)}; a preprocessor changes an object")
        return self._preprocess(body, command)

    def body(self, record: Record, request: CommandHeaders) -> Value:
        """The body of a record with a value and without a Kafka key.

        Raises:
            RecordRejected: as `read`, and `missing_key` where a preprocessor needs the key.
        """
        body = self.read(record, request).body
        if self._preprocess is not None and self._preprocess.needs_key is not None:
            raise RecordRejected("missing_key", self._preprocess.needs_key)
        return body

    def whole(
        self, record: Record, request: CommandHeaders, changed: Value, *, is_enriched: bool, is_completed: bool
    ) -> bytes:
        """The message of a type without deltas: as it came, unless a plug-in changed it to `changed`.

        Raises:
            RecordRejected: `bad_header`: the command removes fields. `missing_key`: the key field that `changed` was
                completed with is not in the message, which is to stay as it came.
        """
        if request.remove is not None:
            raise RecordRejected("bad_header", "header remove: messages of this type are published whole")
        assert record.value is not None
        is_changed = self._preprocess is not None or is_enriched
        if is_completed and not is_changed:
            raise RecordRejected(
                "missing_key",
                "the key field is not in the message, and messages of this type are stored as they came; publish it "
                "in the message, or set key_in_body: optional",
            )
        return self._codec.encode(changed) if is_changed else record.value
