"""The subscribing calls of the client, named as in AMPS."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

from processor.client.subscribe.arguments import StreamArguments, naming
from processor.client.subscribe.typed_view import RecordType, TypedView
from processor.client.subscribe.view import View
from processor.errors import ConfigurationError
from processor.subscriptions.request.subscribe_options import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.client.subscribe.opener import ClientConnection, SubscriptionOpener, TopicInfo
    from processor.client.subscribe.stream import OnMessage
    from processor.client.subscribe.subscription import Subscription
    from processor.client.subscribe.typed_view import RecordT
    from processor.record import Value
    from processor.subscriptions import Message


class SubscribeCalls:
    """The calls that read. Each opens its own connection to Kafka, and fixes its snapshot boundary before it returns.

    Invalid calls raise at once, before anything is read::

        ConfigurationError     no such topic; an option that does not exist or makes no sense here
        FilterError            one of them: an invalid filter, select list or order, with the place
        BrokerUnavailable      no answer in time
        Stop                   another process uses the directory of the kept view
    """

    @property
    def _opener(self) -> SubscriptionOpener[Any]:
        """The opener of subscriptions."""
        raise NotImplementedError

    def sow(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        *,
        order_by: str | None = None,
        select: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        on_message: OnMessage | None = None,
    ) -> Subscription:
        """The state of the world now: `group_begin`, a `sow` message for each record, `group_end`.

        The snapshot contains all records up to the ends of the topic at the time of the call.

        Args:
            topic: a SOW topic or a conflated one.
            filter: selects records.
            options: `timestamp`, and the arguments below, as text.
            order_by: the order, such as `/price DESC,/id`; None: no order.
            select: selects fields.
            top_n: the size limit: only the first `top_n` records in that order.
            skip_n: the number of records in that order that are left out before the first.
            on_message: called with each message, on a thread of its own.
        """
        return self._opener.subscription(
            topic,
            filter,
            options,
            "sow",
            order_by=order_by,
            select=select,
            top_n=top_n,
            skip_n=skip_n,
            on_message=on_message,
        )

    @overload
    def records(
        self, topic: str, filter: str | None = None, *, as_: None = None, order_by: str | None = None,
        select: str | None = None, top_n: int | None = None, skip_n: int | None = None,
    ) -> Iterator[Value]: ...  # fmt: skip
    @overload
    def records(
        self, topic: str, filter: str | None = None, *, as_: type[RecordT], order_by: str | None = None,
        select: str | None = None, top_n: int | None = None, skip_n: int | None = None,
    ) -> Iterator[RecordT]: ...  # fmt: skip
    def records(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        *,
        as_: type[Any] | None = None,
        order_by: str | None = None,
        select: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
    ) -> Iterator[Any]:
        """The records of the state of the world now, one after the other, and nothing else. Arguments as `sow`.

        Args:
            topic: a SOW topic or a conflated one.
            filter: selects records.
            as_: the class of the records: a dataclass, a pydantic model, or another type that pydantic validates. None:
                they are dicts.
            order_by: the order, such as `/price DESC,/id`; None: no order.
            select: selects fields.
            top_n: the size limit.
            skip_n: the number of records that are left out before the first.

        Raises:
            SowstreamError: a record does not fit the class; besides the errors of every call.
        """
        snapshot = self.sow(topic, filter, order_by=order_by, select=select, top_n=top_n, skip_n=skip_n)
        return _records(snapshot, SnapshotRecords(None if as_ is None else RecordType(topic, as_).read))

    @overload
    def record(self, topic: str, key: Value, *, as_: None = None) -> Value | None: ...
    @overload
    def record(self, topic: str, key: Value, *, as_: type[RecordT]) -> RecordT | None: ...
    def record(self, topic: str, key: Value, *, as_: type[Any] | None = None) -> Any:
        """The current record of a key, or None if there is none. `get` returns the same with version and headers.

        Args:
            topic: a SOW topic or a conflated one.
            key: the key, as `get` has it.
            as_: the class of the record, as `records` has it.
        """
        message = self.get(topic, key)
        if message is None:
            return None
        return message.data if as_ is None else RecordType(topic, as_).read(message.sow_key, message.data)

    def topics(self) -> list[TopicInfo]:
        """The topics that this client may use, by their names: those of its settings, or of its gateway.

        Raises:
            BrokerUnavailable: the gateway does not answer.
        """
        return self._opener.topics()

    def get(self, topic: str, key: Value, *, min_version: int | None = None) -> Message | None:
        """The current record of a key, or None. Reads the key's partition only.

        Args:
            topic: a SOW topic or a conflated one.
            key: the SOW key as text, the value of the key field such as 7, a list with a value for each of several key
                fields, or an object with the key fields.
            min_version: over a gateway, whose view may be some milliseconds behind: the `version` of an ack, for
                which it waits for a while. From Kafka everything that was acknowledged is read anyway.

        Raises:
            ConfigurationError: the value is no key of this topic.
            BrokerUnavailable: the version has not come in time.
        """
        return self._opener.get(topic, key, min_version=min_version)

    @naming(StreamArguments)
    def subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[StreamArguments],
    ) -> Subscription:
        """The full merged record on each update from now on, or from a bookmark on.

        Args:
            topic: a SOW topic or a conflated one.
            filter: selects records, in the filter language; None: all.
            options: AMPS' options, separated by commas: `oof`, `timestamp`, and options with a value, such as
                `conflation=500ms` or `select=[-/,+/id]`; for deltas also `no_empties`, `no_sowkey`, `send_keys`.
            arguments: the same and more by name; the client's README describes each.
        """
        return self._opener.subscription(topic, filter, options, "subscribe", **arguments)

    @naming(StreamArguments)
    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[StreamArguments],
    ) -> Subscription:
        """The state of the world, then each update, with no gap and no overlap. Arguments as `subscribe`."""
        return self._opener.subscription(topic, filter, options, "sow_and_subscribe", **arguments)

    @naming(StreamArguments)
    def delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[StreamArguments],
    ) -> Subscription:
        """Key fields and changed fields on each update from now on. Arguments as `subscribe`.

        A record that comes into focus is sent in full. One that matched at the time of the call is sent as a delta.
        """
        return self._opener.subscription(topic, filter, options, "delta_subscribe", **arguments)

    @naming(StreamArguments)
    def sow_and_delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[StreamArguments],
    ) -> Subscription:
        """The state of the world, then the changes to just that state. Arguments as `subscribe`."""
        return self._opener.subscription(topic, filter, options, "sow_and_delta_subscribe", **arguments)

    def connect(self, *, timeout_s: float | None = None, on_message: OnMessage | None = None) -> ClientConnection:
        """A connection for several subscriptions, of different calls and topics: one stream of messages.

        Args:
            timeout_s: it ends when no message came for so long; None: it goes on until it is closed.
            on_message: called with each message, on a thread of its own; without it the connection is iterated over,
                or awaited.
        """
        return self._opener.connection(timeout_s=timeout_s, on_message=on_message)

    @overload
    def view(
        self, topic: str, filter: str | None = None, options: str | None = None, *, as_: None = None,
        select: str | None = None, conflation: str | float | None = None, order_by: str | None = None,
        top_n: int | None = None, skip_n: int | None = None,
    ) -> View: ...  # fmt: skip
    @overload
    def view(
        self, topic: str, filter: str | None = None, options: str | None = None, *, as_: type[RecordT],
        select: str | None = None, conflation: str | float | None = None, order_by: str | None = None,
        top_n: int | None = None, skip_n: int | None = None,
    ) -> TypedView[RecordT]: ...  # fmt: skip
    def view(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        *,
        as_: type[Any] | None = None,
        select: str | None = None,
        conflation: str | float | None = None,
        order_by: str | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
    ) -> View | TypedView[Any]:
        """The state of the world as a mapping that follows the topic: `view[key]` is a full record.

        Returns when the snapshot is complete. With `view_dir` a later run begins with the records that this one
        received, and then receives only the changes since. With `as_` its records are objects of that class, as of
        `records`. Arguments as `subscribe`.
        """
        named = [item.text for item in split(options or "") if item.text]
        if "no_sowkey" in named:
            raise ConfigurationError("option 'no_sowkey': a view finds its records by their keys")
        always = [name for name in ("oof", "no_empties") if name not in named]
        subscription = self._opener.subscription(
            topic,
            filter,
            ",".join([*named, *always]),
            "sow_and_delta_subscribe",
            delivers_meanwhile=True,
            select=select,
            conflation=conflation,
            order_by=order_by,
            top_n=top_n,
            skip_n=skip_n,
        )
        view = View(subscription, partial(self._opener.key_text, topic))
        return view if as_ is None else TypedView(view, RecordType(topic, as_))


class SnapshotRecords:
    """Takes the records out of a snapshot, each once: it begins again where a gateway was lost before its end."""

    def __init__(self, read: Callable[[object, Value], Any] | None = None) -> None:
        """Begin; `read` makes an object of a key and a record, None: records stay as they are."""
        self._read = read
        self._seen: set[str | None] = set()

    def of(self, message: Message) -> Iterator[Any]:
        """The record of a message, if it has one, and none with its key came before."""
        if message.command == "sow" and message.sow_key not in self._seen:
            self._seen.add(message.sow_key)
            yield message.data if self._read is None else self._read(message.sow_key, message.data)


def _records(snapshot: Subscription, records: SnapshotRecords) -> Iterator[Any]:
    with snapshot:
        for message in snapshot:
            yield from records.of(message)
