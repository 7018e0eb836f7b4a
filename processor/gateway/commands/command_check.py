"""The decision whether a user may carry out a command: the only one, for every command and every way to send it.

====================  ==========================================================================================
command               needs
====================  ==========================================================================================
any                   what is not listed is denied; with `publish` a filter, it matches the record before and after
`publish`             the right to publish; where `select` hides fields: no record, and no hidden field in the message
`delta_publish`       the right to publish; the record before may be read; no hidden field in the message
`sow_delete`          the right to delete, and to read the record
====================  ==========================================================================================

A record that may not be read is answered as if there were none. Where that cannot be done, since the command would
create or replace it, it is refused as one that may not be published.

The decision is made on the record in the gateway's view. It holds for the version of that record only, so the command
is sent on the condition that the record still has it.

A record that the user may not read does not exist for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.errors import RecordRejected, SowstreamError, VersionConflict
from processor.filter.evaluation import NO_METADATA, RecordMetadata
from processor.gateway.access.requests import BadRequest
from processor.merge import MergePolicy, compile_merge
from processor.subscriptions.records.current_records import wall_ms
from processor.values.key_text import text_of_key
from processor.wire.ack import conflict_detail
from processor.wire.record_headers import version_of
from processor.wire.subscriber_headers import is_over

if TYPE_CHECKING:
    from processor.config import TopicConfig
    from processor.filter import Filter
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.record import Headers, Record, Value
    from processor.subscriptions import Engine, Topic
    from processor.subscriptions.request.entitlement import Entitlement


STEP_S: Final = 0.02
"""Answers that must not differ in time are sent after a multiple of this time."""
KEYS_IN_STEP: Final = 500
"""Keys of a delete that are collected without a pause for others."""
_KEYS_MAX: Final = 50_000
"""Records of one delete by keys or filter."""
_LOOK_S: Final = 0.005
_LOOK_MAX_S: Final = 0.05


class CurrentRecord(NamedTuple):
    """The record of a key in the gateway's view. All fields have their defaults where there is none."""

    version: int = 0
    """Its version."""
    value: Value = None
    """Its parsed value; None also for one that cannot be parsed."""
    metadata: RecordMetadata = NO_METADATA
    """Its metadata."""
    record: Record | None = None
    """The record itself."""

    def is_visible(self, read: Entitlement | None) -> bool:
        """Return whether there is a record that a right to read allows to see."""
        return read is not None and self.value is not None and read.allows(self.value, self.metadata)


NO_RECORD: Final = CurrentRecord()


def current_record(topic: Topic, engine: Engine, key: str) -> CurrentRecord:
    """Look up the record of a key; one whose time is over counts as none."""
    record = engine.find(key.encode(errors="surrogatepass"))
    if record is None or is_over(record, wall_ms()):
        return NO_RECORD
    try:
        value = topic.value(record)
    except SowstreamError:
        value = None  # Nobody sees a record that cannot be parsed.
    return CurrentRecord(version_of(record.headers) or 0, value, topic.metadata_of(record), record)


async def wait_for_record(
    feed: KafkaFeed, key: str, holds: Callable[[CurrentRecord], bool], timeout_s: float
) -> CurrentRecord:
    """Wait until something holds for the record of a key in the view, at most for a time; return the record of then."""
    loop = asyncio.get_running_loop()
    until_s, pause_s = loop.time() + timeout_s, _LOOK_S
    while True:
        engine = feed.engine
        current = NO_RECORD if engine is None else current_record(feed.topic, engine, key)
        if (engine is not None and holds(current)) or loop.time() >= until_s:
            return current
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LOOK_MAX_S)


async def wait_for_step(began_s: float) -> None:
    """Wait until a multiple of `STEP_S` has passed since a request came.

    The time of an answer then does not say whether a record was looked at that the user may not see.

    Args:
        began_s: the time at which the request came, by the event loop's clock.
    """
    passed_s = asyncio.get_running_loop().time() - began_s
    await asyncio.sleep(STEP_S - passed_s % STEP_S)


class Command(NamedTuple):
    """A command, as far as the decision needs it."""

    op: str
    """`publish`, `delta_publish` or `sow_delete`."""
    key: str
    """The key of its record."""
    data: bytes = b""
    """The message, as the worker reads it."""
    headers: Headers | None = None
    """Its headers, without which it cannot be read."""
    expect_version: int | None = None
    """The version that the user expects."""
    selection: Filter | None = None
    """Of a delete by filter: the records that the user may see and has selected."""


class Permission(NamedTuple):
    """The permission to carry out a command on one version of its record."""

    version: int
    """The version; 0: there is no record, or none for the user."""
    is_hidden: bool = False
    """True for a delete of a record that does not exist for the user."""


class CommandCheck:
    """Decides about the commands of one topic."""

    def __init__(self, topic: Topic, settings: TopicConfig) -> None:
        self._topic: Final = topic
        self._settings: Final = settings
        self._merge = compile_merge(MergePolicy(settings.null_policy, settings.merge_depth))

    def check_rights(self, user: str, rights: Rights, op: str) -> None:
        """Check that a user may send commands of a kind at all.

        Raises:
            BadRequest: `not_entitled`.
        """
        name = self._topic.name
        if op == "sow_delete":
            if not rights.delete:
                raise _refused(f"{name}: {user} may not delete")
            if rights.read is None:
                raise _refused(f"{name}: a delete needs the right to read")
        elif not rights.may_publish:
            raise _refused(f"{user} may not publish to {name}")
        elif op == "delta_publish" and rights.read is None:
            raise _refused(f"{name}: a delta needs the right to read; publish full records")

    @staticmethod
    def depends_on_record(rights: Rights, op: str, *, is_conditional: bool) -> bool:
        """Return whether the answer to a command depends on the record before it."""
        if op == "sow_delete":
            return rights.read is None or rights.read.filter is not None
        if rights.publish is not None or (rights.read is not None and rights.read.select is not None):
            return True
        return (op == "delta_publish" or is_conditional) and not rights.reads_all

    def decide(self, user: str, rights: Rights, command: Command, current: CurrentRecord) -> Permission:
        """Decide about a command.

        Args:
            user: the user's name.
            rights: its rights on the topic.
            command: the command.
            current: the record of its key.

        Raises:
            BadRequest: `not_entitled`.
            VersionConflict: the user expects another version than the record has for it.
            RecordRejected: the message cannot be parsed.
        """
        self.check_rights(user, rights, command.op)
        read = rights.read
        is_visible = current.is_visible(read) and (
            command.selection is None or command.selection.matches(current.value, current.metadata)
        )
        seen = current if is_visible else NO_RECORD
        if command.op != "sow_delete":
            self._check_message(user, rights, command, seen)
        if command.expect_version not in (None, seen.version):
            assert command.expect_version is not None
            raise VersionConflict(conflict_detail(seen.version, command.expect_version), seen.version)
        if command.op == "sow_delete":
            return Permission(seen.version, is_hidden=current.record is not None and not is_visible)
        if current.record is not None:
            self._check_before(user, rights, command, current, is_visible=is_visible)
        return Permission(current.version)

    def _check_message(self, user: str, rights: Rights, command: Command, seen: CurrentRecord) -> None:
        """Check a message and the record after it; nothing depends on a record that the user may not see."""
        settings, read = self._settings, rights.read
        is_delta = command.op == "delta_publish" and self._topic.codec.can_delta
        data = self._topic.codec.decode_command(command.data, command.headers or [], is_delta=is_delta)
        if read is not None:
            visible = None if seen.record is None else read.visible(seen.value)
            if not read.may_write(data, visible if is_delta else None, settings.merge_depth):
                raise _refused(f"{user} may not see every field of {self._topic.name} that this message changes")
        if rights.publish is None:
            return
        if settings.preprocess or settings.enrich or settings.sequence_groups or (is_delta and settings.merge_rules):
            raise _refused(
                f"{self._topic.name} changes messages before they are stored; a right with a filter cannot be checked"
            )
        if is_delta:
            if type(data) is not dict:
                raise BadRequest("bad_request", "the data of a delta is an object")
            before = {} if seen.record is None else self._topic.value(seen.record)  # Its own copy, which is used up.
            if seen.record is not None:
                self._topic.key.protect(before, data, settings.null_policy == "ignore", settings.merge_depth)
            data = self._merge(before, data).record
        elif type(data) is dict and settings.key_in_body == "required":
            self._topic.key.complete(data, command.key.encode(errors="surrogatepass"), seen.value)
        if self._topic.codec.completes and type(data) is dict:
            self._topic.codec.complete(data)
        if not rights.publish.matches(data, self._metadata_after(command)):
            raise self._may_not_publish(user)

    def _check_before(
        self, user: str, rights: Rights, command: Command, current: CurrentRecord, *, is_visible: bool
    ) -> None:
        """Check the record that a message would change."""
        hides_fields = rights.read is not None and rights.read.select is not None
        if not is_visible and (
            command.op == "delta_publish" or hides_fields or command.expect_version is not None or current.value is None
        ):
            raise self._may_not_publish(user)
        if rights.publish is not None and not rights.publish.matches(current.value, current.metadata):
            raise self._may_not_publish(user)
        if command.op == "publish" and hides_fields:
            raise _refused(
                f"a publish would replace fields of {self._topic.name} that {user} may not see; use delta_publish"
            )

    def _metadata_after(self, command: Command) -> RecordMetadata:
        """The metadata of a record that a message would make, as far as they are known before."""
        return RecordMetadata(sow_key=text_of_key(command.key.encode(errors="surrogatepass")), topic=self._topic.name)

    def _may_not_publish(self, user: str) -> BadRequest:
        return _refused(f"{user} may not publish this record to {self._topic.name}")


def encoded(topic: Topic, op: str, data: Value) -> tuple[bytes, Headers]:
    """A message as it is sent to the worker, with its headers.

    Raises:
        RecordRejected: it cannot be written.
    """
    try:
        return topic.codec.encode_command(data, is_delta=op == "delta_publish")
    except TypeError as error:
        raise RecordRejected("undecodable", str(error)) from None


def key_of(topic: Topic, arguments: Mapping[str, Any]) -> str:
    """The key of a command's record, given or computed from its message.

    Raises:
        BadRequest: `missing_key`.
    """
    key, data = arguments.get("key"), arguments.get("data")
    if key is None and type(data) is dict:
        key = topic.key.text(data)
    if key is None:
        raise BadRequest("missing_key", "the message has no key")
    return str(key)


async def spelled_keys(topic: Topic, keys: Sequence[str]) -> list[str]:
    """Each key once, as it is spelled where its record stands, with pauses for others."""
    spelled: dict[str, None] = {}
    for begin in range(0, len(keys), KEYS_IN_STEP):
        spelled |= dict.fromkeys(map(topic.key.spelled, keys[begin : begin + KEYS_IN_STEP]))
        if len(keys) > KEYS_IN_STEP:
            await asyncio.sleep(0)
    return list(spelled)


def check_number(keys: int) -> None:
    """Check the number of keys of a delete: all of them take their places in one step. Raises a `BadRequest`."""
    if keys > _KEYS_MAX:
        raise BadRequest("too_large", f"the delete is of more than {_KEYS_MAX:,} records; send several smaller ones")


def _refused(detail: str) -> BadRequest:
    return BadRequest("not_entitled", detail)
