"""Sends the commands of users whose rights have a filter or a select list: checked, in order, on a condition.

::

    command ──▶ its turn ──▶ decision on the record in the view ──▶ sent with the version of that record ──▶ success
                                ▲                                          │ the worker has another version
                                ╰──────── the view has that version ◀──────╯

Commands for one key, and those that one name numbers, are sent one after another, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from processor.errors import PublishRejected, VersionConflict
from processor.gateway.access.requests import BadRequest
from processor.gateway.commands.command_check import (
    KEYS_IN_STEP,
    Command,
    CommandCheck,
    CurrentRecord,
    check_number,
    current_record,
    encoded,
    key_of,
    spelled_keys,
    wait_for_record,
    wait_for_step,
)
from processor.gateway.commands.turns import CommandTurn, CommandTurns, NumberOrder, UnackedCommands
from processor.subscriptions import SubscriptionSpec, parse_options
from processor.subscriptions.request.subscribe_options import FORMS
from processor.wire.ack import CONFLICT, Ack, AckType, ack_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.config import Config
    from processor.filter import Filter
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.access.identity import Identity
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.subscriptions import Engine

OnAnswer: TypeAlias = Callable[[str | None, "Ack | None", "Exception | None"], None]
"""Called on the event loop with each ack, by type, or with the error that stands for all of them."""

Send: TypeAlias = Callable[[str | None, str, str, dict[str, Any]], Awaitable["Future[Ack] | None"]]
"""Sends a command under a client's name: op, topic and the arguments of the client's call."""

ATTEMPTS_MAX: Final = 8
"""Times that a command is checked and sent, while others change its record."""
_NO_VERSION: Final = 2**62
"""A version that no record has."""
_DELETES_MAX: Final = 200
"""Records of one delete that are deleted at the same time."""
_COUNTED_BYTES: Final = 1024
"""A message counts as one command more for each so many bytes."""
_VIEW_TIMEOUT_S: Final = 5.0
_EXPECTED_TIMEOUT_S: Final = 0.5


class CheckedCommand(NamedTuple):
    """A command with all that is needed to check it again."""

    identity: Identity
    """The user."""
    topic: str
    """The topic."""
    command: Command
    """The command."""
    arguments: dict[str, Any]
    """The arguments of the client's call."""
    name: str | None
    """The client's name, for a command with a number."""
    numbers: NumberOrder
    """The order of the client's numbers."""
    began_s: float
    """The time at which it came, by the event loop's clock."""


class CheckedCommands:
    """Checks, sends and answers commands. Event loop only."""

    def __init__(
        self,
        config: Config,
        feeds: Mapping[str, KafkaFeed],
        rights: Callable[[Identity, str], Rights],
        send: Send,
        on_refusal: Callable[[Identity, str, str], None],
        unacked: UnackedCommands,
    ) -> None:
        """Begin without commands.

        Args:
            config: the settings.
            feeds: the feed of each topic.
            rights: the rights of a user on a topic.
            send: sends a command to Kafka.
            on_refusal: called with the user, the op and the topic of a command that it may not send.
            unacked: counts the commands that wait for their turn or their ack.
        """
        self._config = config
        self._feeds = feeds
        self._rights = rights
        self._send = send
        self._on_refusal = on_refusal
        self._unacked = unacked
        self._checks: dict[str, CommandCheck] = {}
        self.turns: Final = CommandTurns()
        """The order of the commands."""

    def check(self, topic: str) -> CommandCheck:
        """The check of a topic's commands."""
        check = self._checks.get(topic)
        if check is None:
            check = self._checks[topic] = CommandCheck(self._feeds[topic].topic, self._config.topic(topic))
        return check

    async def begin(
        self,
        identity: Identity,
        op: str,
        topic: str,
        arguments: dict[str, Any],
        *,
        name: str | None,
        numbers: NumberOrder,
        on_answer: OnAnswer,
    ) -> None:
        """Take a command, which is sent when its turn comes. Arguments as `Publishing.publish`.

        Raises:
            BadRequest: it cannot be checked, or not now.
            RecordRejected: its message cannot be written, or has no key.
        """
        feed, began_s = self._feeds[topic], asyncio.get_running_loop().time()
        self._engine(topic)
        if self._config.topic(topic).foreign_partition == "accept":
            raise BadRequest("not_entitled", f"{topic} has its keys anywhere; a right with a filter cannot be checked")
        data, headers = b"", None
        if "data" in arguments and op != "sow_delete":
            if self._config.topic(topic).message_type == "json":
                data, headers = encoded(feed.topic, op, arguments["data"])
            else:  # Other message types may ask a registry for their schema.
                data, headers = await asyncio.to_thread(encoded, feed.topic, op, arguments["data"])
        selection: Filter | None = None
        keys = arguments.get("keys")
        if keys is not None:
            check_number(len(keys))
        if arguments.get("filter") is not None:
            selection, keys = await self._selected(identity, topic, arguments["filter"])
        is_one = keys is None
        if not is_one and name is not None:
            raise BadRequest("bad_request", "sequence numbers one command: delete keys one at a time to number them")
        keys = await spelled_keys(feed.topic, [key_of(feed.topic, arguments)] if keys is None else keys)
        common = {one: value for one, value in arguments.items() if one not in ("keys", "filter")}

        def command(key: str) -> CheckedCommand:
            return CheckedCommand(
                identity,
                topic,
                Command(op, key, data, headers, arguments.get("expect_version"), selection),
                {**common, "key": key} if "key" in common or not is_one else common,
                name,
                numbers,
                began_s,
            )

        work = partial(self._several, map(command, keys), topic, arguments.get("ack"), on_answer)
        if is_one:
            work = partial(self._one, command(keys[0]), on_answer)
        # A long message counts as several: its bytes wait, too.
        count = min(len(keys), _DELETES_MAX) + len(data) // _COUNTED_BYTES
        on_end = await self._unacked.admit(topic, identity.user, count)
        places = [(topic, key, "") for key in keys]
        self.turns.begin(places, None if name is None else (topic, "", name), work, on_end)

    async def _one(self, one: CheckedCommand, on_answer: OnAnswer, turn: CommandTurn) -> None:
        """Carry out a command of one record, and answer it.

        The acks of a delete wait for its end, so that they come at the same time whether there was a record or not.
        """
        is_delete = one.command.op == "sow_delete"
        types = ack_types(one.arguments.get("ack"), is_delete=is_delete)
        acks: dict[str, Ack] = {}

        def report(ack: Ack) -> None:
            # A conflict is no answer: the command is decided again.
            if ack.ack_type in types and ack.ack_type not in acks and not (ack.reason or "").startswith(CONFLICT):
                acks[ack.ack_type] = ack
                if not is_delete:
                    on_answer(ack.ack_type, ack, None)

        error: Exception | None = None
        try:
            if not await self._carry_out(one, types, report, turn):
                acks = {ack_type: _deleted_nothing(one, ack_type) for ack_type in types}
        except Exception as failure:  # noqa: BLE001 - Each command has an answer.
            error = failure
        if is_delete:
            await wait_for_step(one.began_s)
            for ack_type, ack in acks.items():
                on_answer(ack_type, ack, None)
        was_rejected = isinstance(error, PublishRejected) and not isinstance(error, VersionConflict)
        if not types or (error is not None and not (was_rejected and acks.keys() - {"received"})):
            on_answer(None, None, error)

    async def _several(
        self, commands: Iterator[CheckedCommand], topic: str, asked: str | None, on_answer: OnAnswer, turn: CommandTurn
    ) -> None:
        """Delete several records, and answer once."""
        types = ack_types(asked, is_delete=True)
        last: AckType = types[-1] if types else "processed"
        counts: list[int] = []
        errors: list[Exception] = []

        def count(ack: Ack) -> None:
            if ack.ack_type == "stats":
                counts.append(ack.records_deleted or 0)

        async def delete(one: CheckedCommand) -> None:
            try:
                await self._carry_out(one, ack_types(f"{last},stats", is_delete=True), count, turn)
            except Exception as error:  # noqa: BLE001 - The other records are deleted all the same.
                errors[:] = errors or [error]

        while part := list(islice(commands, _DELETES_MAX)):
            await asyncio.gather(*map(delete, part))
        if errors:
            on_answer(None, None, errors[0])
        elif not types:
            on_answer(None, None, None)
        else:
            deleted = sum(counts) if "stats" in types else None
            on_answer(last, Ack("success", None, last, topic, None, None, None, None, deleted), None)

    async def _carry_out(
        self, one: CheckedCommand, types: tuple[AckType, ...], report: Callable[[Ack], None], turn: CommandTurn
    ) -> bool:
        """Check and send a command until its record does not change meanwhile; False: there was nothing to delete.

        Raises:
            SowstreamError: it was not carried out.
        """
        feed, command, user = self._feeds[one.topic], one.command, one.identity.user
        check, is_conditional = self.check(one.topic), command.expect_version is not None
        waits = is_conditional
        is_selected = command.selection is not None  # Meanwhile the record may have changed, and match no more.
        arguments = one.arguments
        if types:
            arguments = {**arguments, "ack": with_version(types), "on_ack": _on_loop(report)}
        for _ in range(ATTEMPTS_MAX):
            rights = self._rights(one.identity, one.topic)
            if not is_selected and not check.depends_on_record(rights, command.op, is_conditional=is_conditional):
                check.check_rights(user, rights, command.op)
                await self._sent(one, arguments, turn, is_last=True)
                return True
            current = current_record(feed.topic, self._engine(one.topic), command.key)
            try:
                decision = check.decide(user, rights, command, current)
            except (VersionConflict, BadRequest) as error:
                if waits and isinstance(error, VersionConflict):
                    waits = False
                    if await self._catches_up(one, rights):
                        continue
                if one.name is not None and await self._was_taken(one, types, report, turn):
                    return True
                if isinstance(error, BadRequest) and error.reason == "not_entitled":
                    self._on_refusal(one.identity, command.op, one.topic)
                await wait_for_step(one.began_s)
                raise
            condition = {"expect_version": decision.version, "ack": with_version(types) or "processed"}
            if decision.is_hidden and types:
                condition["on_ack"] = _on_loop(_without_version(report))
            try:
                await self._sent(one, arguments | condition, turn)
            except VersionConflict:
                if decision.is_hidden:
                    return False
            else:
                return True
            checked = current.version
            now = await wait_for_record(feed, command.key, partial(_differs, checked), _VIEW_TIMEOUT_S)
            if now.version == checked:
                raise BadRequest("unavailable", f"the gateway's view of {one.topic} is behind; try again later")
        raise BadRequest("unavailable", "others change the record all the time; try again later")

    async def _was_taken(
        self, one: CheckedCommand, types: tuple[AckType, ...], report: Callable[[Ack], None], turn: CommandTurn
    ) -> bool:
        """Return whether a command that must not be carried out now was taken before, under its number.

        The worker alone knows. It takes no command on a condition that no record meets, and so answers nothing else
        than that it is a duplicate.
        """
        arguments = {**one.arguments, "ack": with_version(types) or "processed", "expect_version": _NO_VERSION}
        if types:
            arguments["on_ack"] = _on_loop(_without_version(report))
        try:
            await self._sent(one, arguments, turn)
        except VersionConflict:
            return False
        return True

    async def _catches_up(self, one: CheckedCommand, rights: Rights) -> bool:
        """Wait until the view has the version that a user expects, who may have an ack of it; return whether it came.

        The time is the same for a record that is not there and for one that the user may not see.
        """
        expected = one.command.expect_version or 0

        def has_come(now: CurrentRecord) -> bool:
            return now.is_visible(rights.read) and now.version >= expected

        return has_come(await wait_for_record(self._feeds[one.topic], one.command.key, has_come, _EXPECTED_TIMEOUT_S))

    def _engine(self, topic: str) -> Engine:
        """The engine of a topic.

        Raises:
            BadRequest: `unavailable`: its view has not caught up.
        """
        engine = self._feeds[topic].engine
        if engine is None:
            raise BadRequest("unavailable", f"the view of {topic} has not caught up yet; try again later")
        return engine

    async def _sent(
        self, one: CheckedCommand, arguments: dict[str, Any], turn: CommandTurn, *, is_last: bool = False
    ) -> None:
        """Send a command, and wait for its last ack; `is_last`: the ack decides nothing."""
        one.numbers.check(one.topic, one.arguments.get("sequence"))
        future = await self._send(one.name, one.command.op, one.topic, arguments)
        turn.note_sent()
        if is_last:
            turn.end()
        if future is not None:
            await asyncio.wrap_future(future)

    async def _selected(self, identity: Identity, topic: str, text: str) -> tuple[Filter | None, list[str]]:
        """The filter of a delete on what the user may see, and the keys of the records that match now.

        A worker's filter sees all fields, and what it deletes would say what is in them.
        """
        feed, read = self._feeds[topic], self._rights(identity, topic).read
        assert feed.engine is not None
        form = FORMS["sow"]
        spec = SubscriptionSpec(feed.topic, text, parse_options(None, **form), **form, entitlement=read)
        connection = feed.engine.connect()
        connection.subscribe(spec)
        keys: list[str] = []
        try:
            while connection.has_waiting:
                connection.begin_turn()
                keys += [one.sow_key for one in connection.take(KEYS_IN_STEP) if one.command == "sow" and one.sow_key]
                check_number(len(keys))
                await asyncio.sleep(0)
        finally:
            connection.close()
        return spec.filter, keys


def with_version(types: tuple[AckType, ...]) -> str:
    """Ack types to ask a worker for: `processed` says which version of the record `persisted` is about."""
    more = ("processed",) if "persisted" in types and "processed" not in types else ()
    return ",".join((*more, *types))


def _differs(version: int, now: CurrentRecord) -> bool:
    return now.version != version


def _on_loop(report: Callable[[Ack], None]) -> Callable[[Ack], None]:
    """A callback for the client's threads that calls another one on the event loop."""
    loop = asyncio.get_running_loop()

    def on_ack(ack: Ack) -> None:
        with contextlib.suppress(RuntimeError):  # The gateway has stopped.
            loop.call_soon_threadsafe(report, ack)

    return on_ack


def _without_version(report: Callable[[Ack], None]) -> Callable[[Ack], None]:
    """A callback for acks of a record that the user may not see."""
    return lambda ack: report(ack._replace(version=None))


def _deleted_nothing(one: CheckedCommand, ack_type: AckType) -> Ack:
    count = 0 if ack_type == "stats" else None
    return Ack("success", None, ack_type, one.topic, one.command.key, None, None, None, count)
