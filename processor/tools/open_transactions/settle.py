"""Ends transactions that stand open, as their coordinator decided, and checks the records that readers see then."""

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
    """The outcome for the transactions that stood open."""

    ended: list[OpenTransaction]
    """Those that were ended."""
    waiting: list[OpenRange]
    """Partitions whose readers still wait."""
    keys: list[KeyInQuestion]
    """The keys of their records, with their present versions for readers."""


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
        """Find the open transactions.

        Args:
            config: the settings.
            admin: administration of the cluster.
            transactions: answers requests about transactions, and writes their ends.
            name: the family, a topic of the settings.
            partition: the only partition of each topic to treat, with the group's offsets; None: all.

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
        """The open transactions, each with the decision about its end."""
        if any(transaction.verdict.needs_idle for transaction in self.opened):
            idle = Idleness(config, admin, name)
            self.opened = [idle.judge(transaction) for transaction in self.opened]

    @property
    def refused(self) -> list[OpenTransaction]:
        """The transactions that must not be touched."""
        return [transaction for transaction in self.opened if transaction.verdict.marker is None]

    def carry_out(self) -> Settled:
        """End the transactions that may be ended, and check the records that readers see.

        Raises:
            Stop: Kafka refuses, or does not answer; this may be repeated, and transactions that were ended stay so.
        """
        todo = [transaction for transaction in self.opened if transaction.verdict.marker is not None]
        aftermath = Aftermath(self._config, self._admin, self._name, [transaction.open_range for transaction in todo])
        for transaction in todo:
            assert transaction.verdict.marker is not None
            self._transactions.write(transaction.verdict.marker)
        waiting = self._await_stable(todo)
        return Settled(todo, waiting, aftermath.read_versions())

    def _await_stable(self, todo: list[OpenTransaction]) -> list[OpenRange]:
        """The partitions whose last stable offset has not passed the open records in time."""
        ends = {
            (transaction.open_range.topic, transaction.open_range.partition): transaction.open_range.end
            for transaction in todo
        }
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
