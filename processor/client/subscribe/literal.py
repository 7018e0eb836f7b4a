"""Subscriptions to a topic without a SOW: each message as it was published, from the delta topic, without state."""

from __future__ import annotations

from processor.codec import Codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.merge import KeyFields
from processor.record import Record, Value
from processor.subscriptions import SubscriptionSpec, Topic
from processor.wire.subscriber_headers import command_of


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
