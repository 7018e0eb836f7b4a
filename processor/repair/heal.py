"""Heals a topic: sends commands to its input topic, so that its workers carry them out in order, exactly once.

A key is healed in up to three steps, and no step can lose a record:

1. If the newest copy is not the one at home, it is published at home. Its own partition keeps it until that is done.
2. Every other copy is deleted.
3. The record at home is published once more. A subscriber that identifies records by key alone has taken the deletion
   of a copy for the end of the record; now it has the record again. For a subscriber of deltas this one is empty, and
   its `delta_base` shows that the record was there.

Every command carries the version that it expects. An update that comes in between makes the command a conflict, which
changes nothing, and the next step is decided from the new state.

The decision is pure: each step follows from the present SOW topic.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from processor.codec import codec_of
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.merge import KeyFields
from processor.repair.misplaced_keys import Homes, SowLog
from processor.wire.publisher_headers import expect_version_header, healed_key_header, published_again
from processor.wire.record_headers import command_header

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from processor.config import Config
    from processor.record import Header, Headers
    from processor.repair.misplaced_keys import Copy

_Item = TypeVar("_Item")


class HealCommand(NamedTuple):
    """One record for the input topic."""

    partition: int
    """The partition that it is sent to, independently of its key's hash."""
    key: bytes
    """The text of the key."""
    value: bytes | None
    """The full record of a `publish`; None for a `sow_delete`."""
    headers: Headers
    """The command, the version it expects, and the publisher's own headers."""


@dataclass(slots=True)
class Case:
    """A key that has a copy in a wrong place, and the steps taken for it so far."""

    own_key: bytes
    """The canonical text of the key."""
    home: int
    """The partition that it belongs to."""
    published: tuple[Copy, Copy | None] | None = None
    """The copy that was published at home, and the record that was there then."""
    deleted: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """The copies for which a deletion was sent: key and partition, and the offset that they had."""
    is_republished: bool = False
    """True if the record at home was published once more, after the last deletion."""
    problem: str = ""
    """The reason why it cannot be healed; empty while there is none."""


def next_step(case: Case, copies: Sequence[Copy], codec_headers: Collection[str] = ()) -> list[HealCommand]:
    """The next commands for a key; none when it is healed, or cannot be healed.

    Args:
        case: the key; the step is noted in it.
        copies: all its live records, in every spelling and partition.
        codec_headers: headers that belong to the message of one SOW record only.
    """
    own = next((copy for copy in copies if copy.partition == case.home and copy.key == case.own_key), None)
    others = [copy for copy in copies if copy is not own]
    if not others:
        if own is None or not case.deleted or case.is_republished:
            return []
        case.is_republished = True
        return [_publish(case, own, own, codec_headers)]
    case.is_republished = False
    newest = max(copies, key=lambda copy: (copy.timestamp_ms, copy is own))
    if newest is not own and not _is_superseded(case, newest, own):
        if case.published == (newest, own):
            case.problem = "its publish was rejected; `sowstream dlq list` says why"
            return []
        case.published = (newest, own)
        return [_publish(case, newest, own, codec_headers)]
    if any(case.deleted.get((copy.key, copy.partition)) == copy.offset for copy in others):
        case.problem = "its deletion was rejected; `sowstream dlq list` says why"
        return []
    case.deleted |= {(copy.key, copy.partition): copy.offset for copy in others}
    return [
        HealCommand(copy.partition, copy.key, None, [command_header("sow_delete"), _expected(copy)]) for copy in others
    ]


def describe_step(case: Case, copies: Sequence[Copy]) -> str:
    """A line about the next steps for a key."""
    own = next((copy for copy in copies if copy.partition == case.home and copy.key == case.own_key), None)
    newest = max(copies, key=lambda copy: (copy.timestamp_ms, copy is own))
    others = ", ".join(_place(case, copy) for copy in copies if copy is not newest)
    shown = case.own_key.decode(errors="replace")
    if newest is own:
        return f"{shown}: {_place(case, own)} stays; {others} is deleted"
    moved = f"{shown}: {_place(case, newest)} is moved to partition {case.home}"
    if own is None:
        return f"{moved}; {others} is deleted" if others else moved
    gone = ", ".join(_place(case, copy) for copy in copies if copy is not newest and copy is not own)
    return f"{moved}, over {_place(case, own)}" + (f"; {gone} is deleted" if gone else "")


def _place(case: Case, copy: Copy) -> str:
    spelled = "" if copy.key == case.own_key else f" as {copy.key.decode(errors='replace')}"
    return f"partition {copy.partition}{spelled} version {copy.version}"


def _is_superseded(case: Case, newest: Copy, own: Copy | None) -> bool:
    """Return whether a copy was published at home already: the clocks of two workers may order the two differently."""
    if case.published is None or own is None:
        return False
    copy, before = case.published
    return copy.offset == newest.offset and copy.partition == newest.partition and own != before


def _publish(case: Case, copy: Copy, own: Copy | None, codec_headers: Collection[str]) -> HealCommand:
    """A full publish at home, with the publisher's own headers and the record's own time to live."""
    headers = published_again(copy.headers, frozenset(codec_headers))
    return HealCommand(case.home, case.own_key, copy.value, [command_header("publish"), _expected(own), *headers])


def _expected(copy: Copy | None) -> Header:
    return expect_version_header(0 if copy is None else copy.version)


STEPS_MAX: Final = 12
"""Most steps for a key: three, and some more for updates that come in between."""
_COMMANDS_MAX: Final = 1_000  # In one transaction.
_BYTES_MAX: Final = 16 * 1024 * 1024  # The same, of values.
_ASK_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.1
_CAME_BACK: Final = (
    "it came to a wrong partition again; a worker with foreign_partition: accept still runs, or one of an older "
    "version of Sowstream"
)


class Healed(NamedTuple):
    """The outcome of a run on a topic."""

    keys: int
    """Keys that were in a wrong place."""
    problems: dict[str, str]
    """The keys that are not healed, with the reason."""
    has_more: bool
    """True if there are more keys than a dry run shows."""


def healable(config: Config, name: str) -> None:
    """Check that the keys of a topic can be healed.

    Raises:
        ConfigurationError: the keys of another topic must be healed instead, or there is nothing to heal.
    """
    root = config.root(name)
    if root != name:
        raise ConfigurationError(
            f"{name!r} is derived from {root!r}: heal that one (sowstream topics heal {root}); the copies follow it"
        )
    if name not in config.topics:
        raise ConfigurationError(
            f"{name!r} is written by the processor {config.processors[name].use!r}; only topics of the section "
            "`topics` are healed"
        )
    if config.topics[name].foreign_partition == "accept":
        raise ConfigurationError(
            f"{name!r} has foreign_partition: accept, so its keys may be in any partition and there is nothing to "
            "heal; set move or reject first if publishers have no partitioner of their own"
        )


def joins_over(config: Config, topic: str) -> list[str]:
    """Return the joins that read a topic, or a copy or projection of it, whose records are in the same partitions.

    They know a record by its key alone, and may read the delete of a healed copy behind the record at home.
    """
    families = [topic]
    for family in families:  # It grows meanwhile.
        families += [name for name, copy in config.conflated.items() if copy.underlying == family]
        projections = {name: view for name, view in config.views.items() if view.kind == "projection"}
        families += [name for name, view in projections.items() if view.underlying == family]
    joins = {name: view for name, view in config.views.items() if view.kind == "join"}
    return sorted(name for name, view in joins.items() if not set(view.inputs).isdisjoint(families))


class Heal:
    """One run on one topic. Leave its `with` to end it. One thread only."""

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        timeout_s: float,
        show: Callable[[str], None],
        on_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Connect to the topics of the family.

        Args:
            config: the settings.
            name: the topic.
            timeout_s: the longest wait for a worker that makes no progress.
            show: called with a line about each key.
            on_read: called with the number of records of each batch that is read.

        Raises:
            ConfigurationError: the topic cannot be healed, or does not exist.
            Stop: Kafka refuses, or does not answer.
        """
        healable(config, name)
        topic = config.topics[name]
        self._name = name
        self._input = config.kafka_names.topic(name, "publish")
        self._timeout_s = timeout_s
        self._show = show
        self._on_read = on_read
        self._codec_headers = codec_of(config, name).header_names
        # A worker uses the key of such a record directly, the text and not the publishers' encoding, and moves nothing.
        self._more: Headers = [healed_key_header(self._input)]
        admin = Admin(config.kafka, config.connect_timeout_s)
        sow = config.kafka_names.topic(name, "sow")
        partitions = admin.cluster().topics.get(sow)
        if partitions is None:
            raise ConfigurationError(f"the Kafka topic {sow} does not exist; `sowstream topics apply` creates it")
        self._homes = Homes(KeyFields(topic.key_fields), partitions)
        group = f"{config.group_prefix}.{name}"
        self._producer = TransactionalProducer(
            config.kafka,
            transactional_id=f"{group}.heal",
            transaction_timeout_s=config.runtime.transaction_timeout_s,
        )
        self._group = LogReader(config.kafka, group=group)
        self._log = SowLog(config.kafka, admin, topic=sow, partitions=partitions, group=group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        self._group.close()
        try:
            if self._producer.is_open:
                self._producer.abort()
        finally:
            self._producer.close()

    def run(self, *, dry_run: bool = False) -> Healed:
        """Heal every key that is in a wrong place, as many at a time as fit into memory.

        Args:
            dry_run: only show the steps.

        Raises:
            Stop: Kafka refuses, or no worker carries the commands out.
        """
        cases: dict[bytes, Case] = {}
        while True:
            misplaced = self._log.find_misplaced(self._homes, on_read=self._on_read)
            own_keys = {self._homes.own_key(key) for key, _ in misplaced.copies}
            for own_key in own_keys & cases.keys():
                cases[own_key].problem = cases[own_key].problem or _CAME_BACK
            new = {own_key: Case(own_key, self._homes.partition(own_key)) for own_key in own_keys - cases.keys()}
            cases |= new
            if new:
                copies = self._log.copies_of(new.keys(), self._homes)
                self._describe(new, copies)
                if not dry_run:
                    self._carry_out(new, copies)
            if dry_run or not new:
                problems = {_shown(case.own_key): case.problem for case in cases.values() if case.problem}
                return Healed(len(cases), problems, misplaced.is_cut)

    def _describe(self, cases: Mapping[bytes, Case], copies: Mapping[tuple[bytes, int], Copy]) -> None:
        for own_key, of_key in self._by_key(copies).items():
            if any(not self._homes.has(copy.key, copy.partition) for copy in of_key):
                self._show(describe_step(cases[own_key], of_key))

    def _carry_out(self, cases: Mapping[bytes, Case], copies: dict[tuple[bytes, int], Copy]) -> None:
        """Take steps until each key has a copy at home only, or cannot be healed."""
        for _ in range(STEPS_MAX):
            by_key = self._by_key(copies)
            commands = [
                command
                for own_key, case in cases.items()
                if not case.problem
                for command in next_step(case, by_key.get(own_key, []), self._codec_headers)
            ]
            if not commands:
                return
            self._await_workers(self._send(commands))
            self._log.update(copies, cases.keys(), self._homes)
        for own_key, of_key in self._by_key(copies).items():
            if any(not self._homes.has(copy.key, copy.partition) for copy in of_key):
                cases[own_key].problem = "it was updated before every step; run the command again"

    def _by_key(self, copies: Mapping[tuple[bytes, int], Copy]) -> dict[bytes, list[Copy]]:
        by_key: dict[bytes, list[Copy]] = {}
        for copy in copies.values():
            by_key.setdefault(self._homes.own_key(copy.key), []).append(copy)
        return by_key

    def _send(self, commands: Sequence[HealCommand]) -> dict[int, int]:
        """Send commands; returns the offset of the last one in each partition of the input."""
        last: dict[int, int] = {}
        for batch in fitting(commands, _COMMANDS_MAX, lambda command: len(command.value or b"")):
            by_partition: dict[int, list[HealCommand]] = {}
            for command in batch:
                by_partition.setdefault(command.partition, []).append(command)
            for partition, its_commands in by_partition.items():
                records = [(command.key, command.value, [*command.headers, *self._more]) for command in its_commands]
                self._producer.send_marked(self._input, partition, records, partial(last.__setitem__, partition))
            self._producer.commit(self._input, {}, self._group.group_metadata())
        return last

    def _await_workers(self, last: Mapping[int, int]) -> None:
        """Wait until the workers of the topic have committed the commands: carried out, or rejected as a conflict.

        Raises:
            Stop: they make no progress.
        """
        todo, positions = dict(last), dict.fromkeys(last, -1)
        moved_s = time.monotonic()
        while todo:
            for partition, offset in list(todo.items()):
                position = self._position(partition)
                if position > positions[partition]:
                    positions[partition], moved_s = position, time.monotonic()
                if position > offset:
                    del todo[partition]
            if todo and time.monotonic() - moved_s > self._timeout_s:
                partitions = ", ".join(map(str, sorted(todo)))
                raise Stop(
                    f"no worker has carried out the commands in partition {partitions} of {self._input} within "
                    f"{self._timeout_s:g} s; start one (sowstream worker {self._name}) and run this again. Commands "
                    "that wait are harmless: each holds for the version of the record that it was made for"
                )
            if todo:
                time.sleep(_PAUSE_S)

    def _position(self, partition: int) -> int:
        try:
            return self._group.committed(self._input, partition, _ASK_TIMEOUT_S) or 0
        except TimeoutError:
            return -1


def fitting(items: Iterable[_Item], count_max: int, size_bytes: Callable[[_Item], int]) -> Iterator[list[_Item]]:
    """Split items into lists of which each fits into one transaction, by their number and their bytes."""
    batch: list[_Item] = []
    sum_bytes = 0
    for item in items:
        bytes_more = size_bytes(item)
        if batch and (len(batch) == count_max or sum_bytes + bytes_more > _BYTES_MAX):
            yield batch
            batch, sum_bytes = [], 0
        batch.append(item)
        sum_bytes += bytes_more
    if batch:
        yield batch


def _shown(key: bytes) -> str:
    return key.decode(errors="replace")
