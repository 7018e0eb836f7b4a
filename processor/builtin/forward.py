"""Forwards what is published to a topic that has moved to the topic that has taken its place.

Publishers go on as before: each command is sent on as it came, in the order of its partition, to the partition that its
key belongs to there, in the transaction that commits its offset. Nothing is merged here. Header `source` goes with a
command that is numbered or wants an ack: its number is compared with others of the same publisher from the same
partition, and its ack is sent to the topic where that publisher waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import BaseModel, ConfigDict

from processor.api import Context, Input, Outgoing, Output, Processor, Record, RecordRejected
from processor.builtin.delta_merge.acks import Acks
from processor.builtin.delta_merge.placement import key_reader
from processor.merge import KeyFields
from processor.wire.command import is_delete_by_filter, is_heal, was_forwarded
from processor.wire.forwarding import moved_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.record import Headers

OUTPUT: Final = "moved"
"""The output: the input topic of the family that has taken the place."""


class ForwardSettings(BaseModel):
    """The content of the fence of the moved topic."""

    model_config = ConfigDict(frozen=True)

    moved_to: str
    """The topic that has taken its place."""
    kafka_topic: str
    """The Kafka topic that is its input."""
    waiting: frozenset[int] = frozenset()
    """Partitions that are not forwarded yet: others have earlier records of the same keys."""


class Forward(Processor):
    """Forwards one partition."""

    settings_type = ForwardSettings
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output(OUTPUT, downstream=True), Output("ack"), Output("mark"))

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin a partition."""
        assert isinstance(settings, ForwardSettings)
        self._context, self._settings = context, settings
        self._own_source = f"{context.source_topic}/".encode()
        self._read_key = key_reader(
            context.topic.key_format, KeyFields(context.topic.key_fields), context.topic.key_names
        )
        self._acks = Acks()

    def process(self, records: Sequence[Record]) -> None:
        """Send the records on, in order, until it is enough."""
        context, size = self._context, 0
        if context.partition in self._settings.waiting:
            context.pause(records[0].offset)  # The fence changes when it may go on, and this pipeline begins anew.
            return
        sent: defaultdict[int, list[Outgoing]] = defaultdict(list)
        for number, record in enumerate(records):
            if number and context.is_full(size):
                context.stop(record.offset)
                break
            try:
                partition, forwarded = self._forwarded(record)
            except RecordRejected as error:
                context.reject(record, error.reason, error.detail)
                self._acks.failed(record, error)
                continue
            sent[partition].append(forwarded)
            size += len(record.value or b"")
        for partition, batch in sent.items():
            context.forward_to(OUTPUT, partition, batch)
        context.count("forwarded", sum(map(len, sent.values())))
        self._acks.send(context)

    def _forwarded(self, record: Record) -> tuple[int, Outgoing]:
        """A record as it is sent on, and its partition there.

        Raises:
            RecordRejected: `missing_key`: its Kafka key cannot be read. `moved`: a delete by filter, or a step of
                `topics heal`, is for the records of one partition, which are in several now.
        """
        context, key = self._context, record.key
        headers: Headers = record.headers or []
        if is_heal(headers):
            raise RecordRejected("moved", f"{context.name} has moved to {self._settings.moved_to}: heal that one")
        if key is None:
            if is_delete_by_filter(record):
                raise RecordRejected(
                    "moved",
                    f"{context.name} has moved to {self._settings.moved_to}, and a delete by filter is for the records "
                    f"of one partition, which are in several now; send it to {self._settings.moved_to}",
                )
            # One partition for all of them, so that they stay in order; the worker there finds their keys.
            partition = context.partition % context.partitions_of(OUTPUT)
        else:
            if self._read_key is not None and not was_forwarded(record, self._own_source):
                key = self._read_key(key)
            partition = context.partition_for(key, OUTPUT)
        is_text_now = self._read_key is not None and key is not None
        return partition, (
            key,
            record.value,
            moved_headers(
                headers,
                self._settings.kafka_topic,
                self._own_source,
                context.partition,
                record.offset,
                is_text_now=is_text_now,
            ),
        )
