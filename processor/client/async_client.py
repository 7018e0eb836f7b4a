"""The client for event loops: calls that wait for Kafka run on another thread."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from processor.client.blocking_calls import BlockingCalls
from processor.client.publish.outbox import DeleteArguments, PublishArguments
from processor.client.subscribe.arguments import StreamArguments, naming
from processor.client.subscribe.subscribe_calls import SnapshotRecords, SubscribeCalls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from concurrent.futures import Future

    from processor.client.publish.publish_many import OnProgress, OnReject
    from processor.client.subscribe.opener import TopicInfo
    from processor.client.subscribe.subscription import Subscription
    from processor.client.subscribe.typed_view import RecordT, TypedView
    from processor.client.subscribe.view import View
    from processor.record import Value
    from processor.subscriptions import Message
    from processor.wire.ack import Ack


_ClientT = TypeVar("_ClientT", bound=BlockingCalls)


class AsyncClient(Generic[_ClientT]):
    """The object of `async with Client(...)`. Arguments and errors are those of `Client`.

    `publish`, `delta_publish` and `sow_delete` return when Kafka's client has the record or, with `ack`, when the last
    ack has arrived. Subscriptions are read with `async for`.
    """

    def __repr__(self) -> str:
        return f"<Async{repr(self.client)[1:]}"

    def __init__(self, client: _ClientT) -> None:
        """Made by `Client.__aenter__`."""
        self.client = client
        """The client itself, for calls that do not wait."""

    @naming(PublishArguments)
    async def publish(
        self, topic: str, data: Value, key: Value = None,
        headers: Mapping[str, str | bytes] | None = None, *, ack: str | None = None,
        **arguments: Unpack[PublishArguments],
    ) -> Ack | None:  # fmt: skip
        """Store a full record; returns the last ack, None without `ack`."""
        return await self._send(partial(self.client.publish, topic, data, key, headers, ack=ack, **arguments))

    @naming(PublishArguments)
    async def delta_publish(
        self, topic: str, data: Value, key: Value = None,
        headers: Mapping[str, str | bytes] | None = None, *, ack: str | None = None,
        **arguments: Unpack[PublishArguments],
    ) -> Ack | None:  # fmt: skip
        """Merge changes into a record; returns the last ack, None without `ack`."""
        return await self._send(partial(self.client.delta_publish, topic, data, key, headers, ack=ack, **arguments))

    @naming(DeleteArguments)
    async def sow_delete(
        self, topic: str, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, **arguments: Unpack[DeleteArguments],
    ) -> Ack | None:  # fmt: skip
        """Delete records; returns the last ack, None without `ack`."""
        return await self._send(partial(self.client.sow_delete, topic, key, headers, ack=ack, **arguments))

    async def mark(self, topic: str) -> int | None:
        """The highest `sequence` that workers have taken from this client's name."""
        return await asyncio.to_thread(self.client.mark, topic)

    async def get(self, topic: str, key: Value, *, min_version: int | None = None) -> Message | None:
        """The current record of a key, or None."""
        return await asyncio.to_thread(partial(self.client.get, topic, key, min_version=min_version))

    @overload
    async def view(
        self, topic: str, filter: str | None = None, options: str | None = None, *, as_: None = None
    ) -> View: ...  # fmt: skip
    @overload
    async def view(
        self, topic: str, filter: str | None = None, options: str | None = None, *, as_: type[RecordT]
    ) -> TypedView[RecordT]: ...  # fmt: skip
    async def view(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002
        options: str | None = None,
        *,
        as_: type[Any] | None = None,
    ) -> View | TypedView[Any]:
        """The state of the world as a mapping; returns when its snapshot is complete."""
        return await asyncio.to_thread(partial(self.client.view, topic, filter, options, as_=as_))

    async def record(self, topic: str, key: Value) -> Value | None:
        """The current record of a key, or None if there is none."""
        return await asyncio.to_thread(self.client.record, topic, key)

    async def records(
        self, topic: str, filter: str | None = None, *, order_by: str | None = None, select: str | None = None  # noqa: A002
    ) -> AsyncIterator[Value]:  # fmt: skip
        """The records of the state of the world now, to be read with `async for`."""
        records = SnapshotRecords()
        async with await self.sow(topic, filter, order_by=order_by, select=select) as snapshot:
            async for message in snapshot:
                for record in records.of(message):
                    yield record

    async def publish_many(
        self, topic: str, records: Iterable[Value], *, key: Callable[[Any], Value] | None = None, delta: bool = False,
        ack: str | None = None, on_progress: OnProgress | None = None, on_reject: OnReject | None = None,
        timeout_s: float | None = None,
    ) -> int:  # fmt: skip
        """Publish many records, which are taken from the iterable on another thread; returns their number."""
        return await asyncio.to_thread(
            partial(
                self.client.publish_many, topic, records, key=key, delta=delta, ack=ack, on_progress=on_progress,
                on_reject=on_reject, timeout_s=timeout_s,
            )
        )  # fmt: skip

    async def topics(self) -> list[TopicInfo]:
        """The topics that this client may use."""
        return await asyncio.to_thread(self.client.topics)

    async def sow(
        self, topic: str, filter: str | None = None, options: str | None = None, *, order_by: str | None = None,  # noqa: A002
        select: str | None = None,
    ) -> Subscription:  # fmt: skip
        """The state of the world now, to be read with `async for`."""
        return await asyncio.to_thread(self.client.sow, topic, filter, options, order_by=order_by, select=select)

    @naming(StreamArguments)
    async def subscribe(
        self, topic: str, filter: str | None = None, options: str | None = None, **arguments: Unpack[StreamArguments]  # noqa: A002
    ) -> Subscription:  # fmt: skip
        """The full record on each update from now on."""
        return await self._open(SubscribeCalls.subscribe, topic, filter, options, arguments)

    @naming(StreamArguments)
    async def sow_and_subscribe(
        self, topic: str, filter: str | None = None, options: str | None = None, **arguments: Unpack[StreamArguments]  # noqa: A002
    ) -> Subscription:  # fmt: skip
        """The state of the world, then each update."""
        return await self._open(SubscribeCalls.sow_and_subscribe, topic, filter, options, arguments)

    @naming(StreamArguments)
    async def delta_subscribe(
        self, topic: str, filter: str | None = None, options: str | None = None, **arguments: Unpack[StreamArguments]  # noqa: A002
    ) -> Subscription:  # fmt: skip
        """Key fields and changed fields on each update from now on."""
        return await self._open(SubscribeCalls.delta_subscribe, topic, filter, options, arguments)

    @naming(StreamArguments)
    async def sow_and_delta_subscribe(
        self, topic: str, filter: str | None = None, options: str | None = None, **arguments: Unpack[StreamArguments]  # noqa: A002
    ) -> Subscription:  # fmt: skip
        """The state of the world, then the changes to it."""
        return await self._open(SubscribeCalls.sow_and_delta_subscribe, topic, filter, options, arguments)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until Kafka has all published records, and every requested ack has arrived."""
        await asyncio.to_thread(self.client.flush, timeout_s)

    async def _open(
        self,
        call: Callable[..., Subscription],
        topic: str,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        arguments: StreamArguments,
    ) -> Subscription:
        return await asyncio.to_thread(partial(call, self.client, topic, filter, options, **arguments))

    async def _send(self, call: Callable[[], Future[Ack] | None]) -> Ack | None:
        future = await asyncio.to_thread(call)
        if future is None:
            return None
        ack: Ack = await asyncio.wrap_future(future)
        return ack
