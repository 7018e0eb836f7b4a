"""Every error Sowstream raises, in families by what happens next.

SowstreamError
├── RecordRejected        this record goes to the dead-letter topic with its reason; the worker goes on
│   └── PublishRejected   what a publisher who asked for an ack hears of it; at the worker it is over
├── TransactionAborted    drop what is staged, rewind to the last commit, go on
│   ├── ProducerLost      the same, with a new producer
│   ├── ProcessorFailed   the same, one record at a time until the one it failed on is found
│   └── OutputTooLarge    the same, one record at a time until the one is found whose output its topic does not take
├── StateLocked           somebody else still uses the partition's directory: try again, for a while
├── StateDamaged          wipe the partition's directory and restore it from the SOW topic
│   └── StateBehind       nothing is wiped: the state was opened again as the disk has it, the restore brings the rest
├── PartitionHeld         this partition does not go on; it is asked again, and the others of its topic go on
└── Stop                  end the pipeline, or the command, with exit code 1 and this message
    ├── ConfigurationError    the same with exit code 2: settings, flags or topics that cannot work together
    │   └── FilterError       a filter that cannot be meant; a subscriber who gave it is told, and nothing ends
    ├── BrokerUnavailable     Kafka did not answer within the time given
    ├── SubscriberTooSlow     a subscriber has not taken what it was told, and forbade to fold it; others go on
    ├── PositionLost          what a reader was to read next is not in Kafka any more: begin with a snapshot
    ├── AcksMissing           what was published is in Kafka, but no worker has acknowledged it within the time given
    ├── DiskUnusable          the disk of state_dir is full, read-only, failing or forbidden; local state stays as it is
    │   └── DiskFull              it takes no more: directories that the worker no longer needs go first
    └── UndeclaredOutput      a processor forwards to an output that it does not declare: no record is at fault
"""

from __future__ import annotations

from typing import Literal, TypeAlias

HoldReason: TypeAlias = Literal[
    "rejects",
    "unreadable_batch",
    "open_transaction",
    "kafka_silent",
    "registry",
    "input_gone",
    "offsets_lost",
    "state_locked",
    "state_damaged",
    "plugin_failed",
]
"""Why a partition is held, in logs, metrics and `sowstream status`.

- `rejects`: more of its records were rejected than `dlq_max_ratio` allows.
- `unreadable_batch`: its input cannot be read at the next offset, as of a batch that does not unpack.
- `open_transaction`: a restore waits for the end of a transaction.
- `kafka_silent`: Kafka does not answer a question about this partition.
- `registry`: the schema registry does not answer.
- `input_gone`: records were deleted before they were processed.
- `offsets_lost`: the group has no offset, and its outputs have records.
- `state_locked`: another process has its directory open.
- `state_damaged`: its store was damaged again and again.
- `plugin_failed`: the processor raised where no record is at fault.
"""


class SowstreamError(Exception):
    """Anything that Sowstream itself reports."""


class RecordRejected(SowstreamError):
    """One input record cannot be taken: it goes to the dead-letter topic."""

    def __init__(self, reason: str, detail: str) -> None:
        """Create it.

        Args:
            reason: one of `RejectReason`, or a plug-in's own word of lower-case letters, digits and `_`.
            detail: the same as a sentence, with the place.
        """
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class PublishRejected(RecordRejected):
    """A worker rejected what was published: it lies in the dead-letter topic with this reason."""


class TransactionAborted(SowstreamError):
    """The open transaction cannot be committed: what it staged is dropped and done again."""


class ProducerLost(TransactionAborted):
    """The producer cannot be used any more, or nobody knows what became of its last commit."""


class ProcessorFailed(TransactionAborted):
    """A processor raised: the transaction is given up to find the record it failed on."""


class OutputTooLarge(TransactionAborted):
    """Kafka does not take an output, or a batch of them, as it is too large."""

    def __init__(self, message: str, topic: str | None = None, partition: int | None = None) -> None:
        """Say what happened, and on which topic and partition; None: it is not known."""
        super().__init__(message)
        self.topic = topic
        self.partition = partition


class StateLocked(SowstreamError):
    """A partition's directory is in use by another process, often one that is just letting go of it."""


class StateDamaged(SowstreamError):
    """A partition's local state cannot be used; the SOW topic still has everything."""


class StateBehind(StateDamaged):
    """The disk was full, and has room again: the state stands where the disk has it, and lacks what came later."""


class PartitionHeld(SowstreamError):
    """One partition cannot go on; the message says what happened, to what, and what to do.

    What it has in the open transaction is rolled back. It is asked again after a second, then after twice as long each
    time, up to five minutes.
    """

    def __init__(self, reason: HoldReason, message: str) -> None:
        """Say why, by a reason from the closed list, and in a sentence with the place."""
        super().__init__(message)
        self.reason: HoldReason = reason


class Stop(SowstreamError):
    """A pipeline, or a command, cannot go on; the message says what happened, to what, and what to do."""


class ConfigurationError(Stop):
    """Settings, flags or topics that cannot work; nothing was started."""


class FilterError(ConfigurationError):
    """A filter cannot be parsed, or asks for what there is not; the message shows the place, with a caret under it.

    So is a select list, or an order, that cannot be meant.
    """

    def __init__(self, message: str, line: int = 1, column: int = 1, said: str = "") -> None:
        """Say what is wrong, where it is and what to write instead; line and column count from 1.

        `said` is the message without the place.
        """
        super().__init__(message)
        self.line = line
        self.column = column
        self.said = said


class BrokerUnavailable(Stop):
    """Kafka did not answer within the time given."""


class SubscriberTooSlow(Stop):
    """A subscriber did not take its messages, and forbade to fold them: its subscription has ended."""


class PositionLost(Stop):
    """What was to be read next is not there: records were deleted, or the topic was made anew."""


class AcksMissing(Stop):
    """Acks that were asked for have not come; what became of the records is not known."""


class DiskUnusable(Stop):
    """The disk of a local state takes or gives no data: full, over quota, read-only, failing, forbidden.

    Nothing is wiped: to restore needs the disk too. The SOW topic has everything, and a start on a disk that works
    goes on from there.
    """


class DiskFull(DiskUnusable):
    """There is no room, or the quota is used up."""


class UndeclaredOutput(Stop):
    """A processor forwarded to an output that it does not declare."""
