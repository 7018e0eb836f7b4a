"""Subscribing to a topic without a SOW: each message as it was published, from the delta topic, and no state."""

from __future__ import annotations

from processor.codec import Codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.merge import KeyFields
from processor.record import Name, Record, Value, header_text
from processor.subscriptions import SubscriptionSpec, Topic


class LiteralTopic(Topic):
    """What is known of the messages of such a topic."""

    default_command: str
    """What a message without header `command` is: the headers of some message types mean another thing on deltas."""

    @classmethod
    def of(cls, name: str, codec: Codec, settings: TopicConfig) -> LiteralTopic:
        """The topic of a name."""
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
        command = header_text(record.headers, Name.COMMAND) or self.default_command
        return codec.decode_command(record.value, record.headers or [], is_delta=command == "delta_publish")


def refuse_state(name: str, what: str) -> ConfigurationError:
    """The error for a call that needs records."""
    return ConfigurationError(
        f"{name} keeps no records (sow: false), and {what} needs them; subscribe and delta_subscribe deliver what is "
        "published from now on"
    )


def check_literal(topic: Topic, request: SubscriptionSpec) -> None:
    """Refuse what needs records on a topic that keeps none.

    Raises:
        ConfigurationError: naming what needs them.
    """
    if not isinstance(topic, LiteralTopic) or not request.needs_view:
        return
    what = "a snapshot" if request.snapshot else "oof" if request.options.oof else "a window (order_by, top_n, skip_n)"
    raise refuse_state(topic.name, what)
