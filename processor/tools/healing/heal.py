"""Heals a topic: sends commands to its input topic, so that its workers carry them out in order, exactly once."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.codec import codec_of
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.producers.transactional_producer import TransactionalProducer
from processor.kafka.readers.log_reader import LogReader
from processor.merge import KeyFields
from processor.tools.healing.decide import Case, HealCommand, describe_step, next_step
from processor.tools.healing.placement import Homes
from processor.tools.healing.sow_log import SowLog
from processor.wire.publisher_headers import healed_key_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from processor.config import Config
    from processor.record import Headers
    from processor.tools.healing.placement import Copy

STEPS_MAX: Final = 12
"""Most steps for a key: three, and some more for updates that come in between."""
_COMMANDS_MAX: Final = 1_000  # In one transaction, and the bytes of their values.
_BYTES_MAX: Final = 16 * 1024 * 1024
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        for batch in _batches(commands):
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


def _batches(commands: Sequence[HealCommand]) -> Iterator[list[HealCommand]]:
    """Split commands into batches that fit into one transaction."""
    batch: list[HealCommand] = []
    size_bytes = 0
    for command in commands:
        bytes_more = len(command.value or b"")
        if batch and (len(batch) == _COMMANDS_MAX or size_bytes + bytes_more > _BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(command)
        size_bytes += bytes_more
    if batch:
        yield batch


def _shown(key: bytes) -> str:
    return key.decode(errors="replace")
