"""The arguments of the calls that subscribe, by name; and subscriptions to a topic without a SOW, which need no state.

Such a topic delivers each message as it was published, from the delta topic.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from processor.codec import Codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError, RecordRejected
from processor.filter.aggregate import plain
from processor.filter.evaluation import UNCOUNTED, compile_path
from processor.filter.value import first
from processor.merge import KeyFields
from processor.record import Record, Value
from processor.subscriptions import SubscriptionSpec, Topic
from processor.values.key_text import group_key, spelled_group_key
from processor.values.pointer import names
from processor.wire.subscriber_headers import command_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.client.subscribe.stream import OnMessage


class LiteralTopic(Topic):
    """A topic without a SOW, which parses the published messages."""

    default_command: str
    """The command of a message without header `command`: some message types use headers differently for deltas."""

    @classmethod
    def of(cls, name: str, codec: Codec, settings: TopicConfig) -> LiteralTopic:
        """Create it from a topic's settings."""
        topic = cls(name, codec, KeyFields(settings.key_fields))
        topic.default_command = settings.default_command
        return topic

    def decoded(self, record: Record) -> Value:
        """The parsed message; a publisher wrote it, and a worker has checked it.

        Raises:
            RecordRejected: it cannot be parsed here.
        """
        assert record.value is not None
        codec = self.codec
        if not codec.uses_headers:
            return codec.decode(record.value)
        command = command_of(record.headers) or self.default_command
        return codec.decode_command(record.value, record.headers or [], is_delta=command == "delta_publish")


def refuse_state(name: str, feature: str) -> ConfigurationError:
    """The error for a call or option that needs stored records."""
    return ConfigurationError(
        f"{name} keeps no records (sow: false), and {feature} needs them; subscribe and delta_subscribe deliver "
        "messages that are published from now on"
    )


def check_literal(topic: Topic, request: SubscriptionSpec) -> None:
    """Reject a subscription that needs stored records on a topic that keeps none.

    Raises:
        ConfigurationError: it names the option or call that needs them.
    """
    if not isinstance(topic, LiteralTopic) or not request.needs_view:
        return
    feature = (
        "a snapshot" if request.snapshot else "oof" if request.options.oof else "a window (order_by, top_n, skip_n)"
    )
    raise refuse_state(topic.name, feature)


class SubscriptionArguments(TypedDict, total=False):
    """Arguments by name of each subscription of a connection; all but `sub_id` may stand in the options string too."""

    select: str | Sequence[str] | None
    """The fields that are delivered, such as `-/,+/id,+/a/b`: the most specific rule wins; the others are included."""
    conflation: str | float | None
    """Time of conflation, `500ms` or seconds; `auto`: until they are taken; `none`: never."""
    conflation_key: str | Sequence[str] | None
    """Paths, such as `/a,/b`: records equal in them are conflated as one; full records only, with `conflation`."""
    grouping: str | Sequence[str] | None
    """Paths, such as `/customer`: with `projection`, messages are about groups of records that are equal in them."""
    projection: str | Sequence[str] | None
    """The fields of each group, such as `SUM(/qty) AS /qty`, in the language of views."""
    order_by: str | Sequence[str] | None
    """The order of the snapshot and of `top_n`, such as `/price DESC,/id`."""
    top_n: int | None
    """The size limit: only the first `top_n` records in that order; updates move records in and out."""
    skip_n: int | None
    """The number of records in that order that are left out before the first."""
    sub_id: str | None
    """Its name, listed in its messages; a named subscription also accepts others that need the state of the world."""


class StreamArguments(SubscriptionArguments, total=False):
    """Arguments by name of a subscription with a stream of its own."""

    bookmark: str | None
    """Begin of a replay: `epoch`, `now`, an ISO 8601 time, or a message's `bookmark`; `subscribe` only."""
    timeout_s: float | None
    """It ends when no message came for so long."""
    on_message: OnMessage | None
    """Called with each message, on a thread of its own; without it the subscription is iterated over, or awaited."""


CallT = TypeVar("CallT", bound="Callable[..., Any]")


def naming(arguments: type) -> Callable[[CallT], CallT]:
    """Show the arguments by name in the signature of a call, which takes them as `**arguments`.

    Type checkers know them by `Unpack`, but `help()` and notebooks would print that word alone.

    Args:
        arguments: the `TypedDict` with their names and types; each has the default None.
    """

    def shown(call: CallT) -> CallT:
        signature = inspect.signature(call)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_text(annotation))
            for name, annotation in arguments.__annotations__.items()
        ]
        call.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        return call

    return shown


def _text(annotation: Any) -> str:
    """An annotation as it is written."""
    return str(getattr(annotation, "__forward_arg__", annotation))


def key_text(topic: str, key: Value, fields: KeyFields, *, is_of_groups: bool = False) -> str:
    """The SOW key of a value: of a key field, of a list or an object of several; a text is the key itself.

    Where keys are explicit, an integer means its digits.

    Args:
        topic: the topic.
        key: the value, or the values.
        fields: the key fields of the topic.
        is_of_groups: whether its keys are those of groups; then a text may spell a key in another way.

    Raises:
        RecordRejected: `missing_key`: it is no key of the topic.
    """
    if isinstance(key, str):
        return spelled_group_key(key, len(fields.pointers)) if is_of_groups else key
    if is_of_groups and (values := _grouping_values(key, fields)) is not None:
        return group_key(values).decode(errors="surrogatepass")
    named = ", ".join(fields.pointers) or "explicit"
    text = str(key) if type(key) is int and not fields.pointers else None
    try:
        if fields.pointers:
            text = fields.text(key) if isinstance(key, dict) else fields.text_of_values(key)
    except RecordRejected as error:
        raise RecordRejected("missing_key", f"{key!r:.100} is no key of {topic!r}: {error.detail}") from None
    if text is None:
        detail = f"{key!r:.100} is no key of {topic!r}, whose key is {named}; give its text or values"
        raise RecordRejected("missing_key", detail)
    return text


def _grouping_values(key: Value, fields: KeyFields) -> list[Value] | None:
    """The values of a group's fields; None if there is another number of them."""
    if isinstance(key, dict):
        paths = [compile_path(names(pointer)) for pointer in fields.pointers]
        return [plain(first(path(key, UNCOUNTED))) for path in paths]
    values = key if isinstance(key, list) else [key]
    return [plain(first(value)) for value in values] if len(values) == len(fields.pointers) else None
