"""Ends transactions that stand open, as their coordinator decided, and checks what readers see then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.kafka.transactions.open_ranges import open_ranges
from processor.kafka.transactions.transaction_log import GROUP_OFFSETS
from processor.tools.open_transactions.aftermath import Aftermath, KeyInQuestion
from processor.tools.open_transactions.find import examine, reader_group, standing
from processor.tools.open_transactions.idle import Idleness

if TYPE_CHECKING:
    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.kafka.transactions.open_ranges import OpenRange
    from processor.kafka.transactions.transaction_admin import TransactionAdmin
    from processor.tools.open_transactions.find import OpenTransaction

_STABLE_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.1


class Settled(NamedTuple):
    """What became of the transactions that stood open."""

    ended: list[OpenTransaction]
    """Those that were ended."""
    waiting: list[OpenRange]
    """Partitions whose readers still wait."""
    keys: list[KeyInQuestion]
    """The keys of their records, and what readers see of them now."""


class Settlement:
    """The end of the transactions that stand open in one family. Nothing is changed before `carry_out`."""

    def __init__(
        self,
        config: Config,
        admin: Admin,
        transactions: TransactionAdmin,
        name: str,
        *,
        partition: int | None = None,
    ) -> None:
        """Look what there is to do.

        Args:
            config: the settings.
            admin: administration of the cluster.
            transactions: answers questions about transactions, and writes their ends.
            name: the family, a topic of the settings.
            partition: only this one of each topic, and the group's positions; None: all.

        Raises:
            ConfigurationError: there is no such topic, or Kafka refuses.
            BrokerUnavailable: no answer in time.
        """
        self._config, self._admin, self._transactions, self._name = config, admin, transactions, name
        cluster = admin.cluster()
        ranges = [
            open_range
            for open_range in standing(config, cluster, [name])[name]
            if partition is None or open_range.topic == GROUP_OFFSETS or open_range.partition == partition
        ]
        self.opened = examine(config, cluster, transactions, ranges, name)
        """What stands open, each with how it must end."""
        if any(found.verdict.needs_idle for found in self.opened):
            idle = Idleness(config, admin, name)
            self.opened = [idle.judge(found) for found in self.opened]

    @property
    def refused(self) -> list[OpenTransaction]:
        """Those that are not to be touched."""
        return [found for found in self.opened if found.verdict.marker is None]

    def carry_out(self) -> Settled:
        """End what may be ended, and check what readers see.

        Raises:
            Stop: Kafka refuses, or does not answer; what was ended stays so, and this may be done again.
        """
        todo = [found for found in self.opened if found.verdict.marker is not None]
        aftermath = Aftermath(self._config, self._admin, self._name, [found.open_range for found in todo])
        for found in todo:
            assert found.verdict.marker is not None
            self._transactions.write(found.verdict.marker)
        waiting = self._await_stable(todo)
        return Settled(todo, waiting, aftermath.look())

    def _await_stable(self, todo: list[OpenTransaction]) -> list[OpenRange]:
        """The partitions whose last stable offset has not passed the records in question in time."""
        ends = {(found.open_range.topic, found.open_range.partition): found.open_range.end for found in todo}
        deadline_s = time.monotonic() + _STABLE_TIMEOUT_S
        while True:
            left = [
                open_range
                for open_range in open_ranges(self._config.kafka, ends, group=reader_group(self._config))
                if open_range.begin < ends[open_range.topic, open_range.partition]
            ]
            if not left or time.monotonic() > deadline_s:
                return left
            time.sleep(_PAUSE_S)
