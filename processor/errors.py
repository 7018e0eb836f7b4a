"""Every error of Sowstream, in families by the reaction to it.

SowstreamError
├── RecordRejected        this record goes to the dead-letter topic with its reason; the worker goes on
│   └── PublishRejected   the same, in the client of a publisher that asked for an ack
│       └── VersionConflict   the command expected another version of the record: nothing changed, no dead letter
├── TransactionAborted    drop the staged records, rewind to the last commit, go on
│   ├── ProducerLost      the same, with a new producer
│   ├── ProcessorFailed   the same, then one record at a time to find the one that fails
│   └── OutputTooLarge    the same, then one record at a time to find the one with the large output
├── StateLocked           another process still uses the partition's directory: try again, for a while
├── StateDamaged          wipe the partition's directory and restore it from the SOW topic
│   └── StateBehind       nothing is wiped: the state was reopened as it is on disk, and the restore adds the rest
├── PartitionHeld         this partition stops and is tried again later; the others of its topic go on
└── Stop                  end the pipeline, or the command, with exit code 1 and this message
    ├── ConfigurationError    the same with exit code 2: settings, flags or topics that cannot work together
    │   ├── FilterError       a wrong filter; its subscriber receives the error, and nothing ends
    │   └── DefinitionChanged the records are of another definition: the pipelines end, and none is started again
    ├── BrokerUnavailable     Kafka did not answer in time
    ├── TopicFenced           Spark merges this topic, or its records are being copied: its workers wait
    ├── SubscriberTooSlow     a subscriber took no messages, and forbade conflation; others go on
    ├── SubscriptionFailed    an error that is not of this project ended a subscription; others go on, the log has it
    ├── GroupsLost            a value of a large group is not known any more: begin with a snapshot
    ├── TopicMoved            another topic has taken the place of the one that is read: read that one
    ├── PositionLost          the next record of a reader is not in Kafka any more: begin with a snapshot
    ├── AcksMissing           the published records are in Kafka, but were not acknowledged in time
    ├── DiskUnusable          the disk of state_dir is full, read-only, failing or forbidden; local state stays as it is
    │   └── DiskFull              no room is left: directories that the worker no longer needs go first
    └── UndeclaredOutput      a processor forwards to an output that it does not declare: no record is at fault
"""

from __future__ import annotations

import difflib
import re
from typing import Final, Literal, TypeAlias

HoldReason: TypeAlias = Literal[
    "rejects",
    "unreadable_batch",
    "open_transaction",
    "kafka_silent",
    "registry",
    "input_gone",
    "offsets_lost",
    "fenced",
    "state_locked",
    "state_damaged",
    "plugin_failed",
    "stuck",
]
"""The reason for which a partition is held, in logs, metrics and `sowstream status`.

- `rejects`: more of its records were rejected than `dlq_max_ratio` allows.
- `unreadable_batch`: its input cannot be read at the next offset, as of a batch that does not unpack.
- `open_transaction`: a restore waits for the end of a transaction.
- `kafka_silent`: Kafka does not answer a question about this partition.
- `registry`: the schema registry does not answer.
- `input_gone`: records were deleted before they were processed.
- `offsets_lost`: the group has no offset, and its outputs have records.
- `fenced`: by its marks another engine merges it, or another topic has taken its place or that of its input.
- `state_locked`: another process has its directory open.
- `state_damaged`: its store was damaged again and again.
- `plugin_failed`: the processor raised where no record is at fault.
- `stuck`: a call of the processor did not return, and its process was ended.
"""


class SowstreamError(Exception):
    """Base of all errors that Sowstream itself raises."""


class RecordRejected(SowstreamError):
    """One input record cannot be processed: it goes to the dead-letter topic."""

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
    """A worker rejected a published record, which is in the dead-letter topic with this reason."""


class VersionConflict(PublishRejected):
    """A conditional command met another version of its record: it changed nothing, and is no dead letter.

    Read the record and decide again: the command was an attempt that another publisher won.
    """

    def __init__(self, detail: str, version: int | None = None) -> None:
        """Create it with a sentence and the version that the record has: 0 for no record, None where it is unknown."""
        super().__init__("conflict", detail)
        self.version = version


class TransactionAborted(SowstreamError):
    """The open transaction cannot be committed: its records are dropped, and its input is processed again."""


class ProducerLost(TransactionAborted):
    """The producer cannot be used any more, or the outcome of its last commit is unknown."""


class ProcessorFailed(TransactionAborted):
    """A processor raised: the transaction is aborted to find the record on which it failed."""


class OutputTooLarge(TransactionAborted):
    """Kafka refuses an output record, or a batch of them, as too large."""

    def __init__(self, message: str, topic: str | None = None, partition: int | None = None) -> None:
        """Create it with the topic and the partition; None where they are not known."""
        super().__init__(message)
        self.topic = topic
        self.partition = partition


class StateLocked(SowstreamError):
    """A partition's directory is in use by another process, often one that is just releasing it."""


class StateDamaged(SowstreamError):
    """A partition's local state cannot be used; the SOW topic still has everything."""


class StateBehind(StateDamaged):
    """The disk was full, and has room again: the state is as it is on disk, and lacks the later records."""


class PartitionHeld(SowstreamError):
    """One partition cannot go on; the message has the event, the place and the remedy.

    Its part of the open transaction is rolled back. It is tried again after a second, then after twice as long each
    time, up to five minutes.
    """

    def __init__(self, reason: HoldReason, message: str) -> None:
        """Create it with a reason from the closed list, and a sentence with the place."""
        super().__init__(message)
        self.reason: HoldReason = reason


class Stop(SowstreamError):
    """A pipeline, or a command, cannot go on; the message has the event, the place and the remedy."""


class ConfigurationError(Stop):
    """Settings, flags or topics that cannot work; nothing was started."""


class FilterError(ConfigurationError):
    """A filter, a select list or an order is wrong; the message shows the place, with a caret under it.

    It cannot be parsed, or names something that does not exist.
    """

    def __init__(self, message: str, line: int = 1, column: int = 1, said: str = "") -> None:
        """Create it with the problem, its place and its remedy; line and column count from 1.

        `said` is the message without the place.
        """
        super().__init__(message)
        self.line = line
        self.column = column
        self.said = said

    def of(self, noun: str) -> str:
        """Return the message of another kind of text than a filter, such as an expression."""
        return (
            str(self).replace("filter, line", f"{noun}, line", 1).replace("; the filter ends", f"; the {noun} ends", 1)
        )


class DefinitionChanged(ConfigurationError):
    """The records are of another definition than that of the settings: a repetition would find the same."""


class BrokerUnavailable(Stop):
    """Kafka did not answer in time."""


class TopicFenced(Stop):
    """Spark merges this topic, or a move to it or back is under way: workers wait without joining the group."""


class SubscriberTooSlow(Stop):
    """A subscriber did not take its messages, and forbade conflation: its subscription has ended."""


class SubscriptionFailed(Stop):
    """An error that is not of this project has ended a subscription; the log has it, as it may show records."""


class PositionLost(Stop):
    """The next record to read does not exist: records were deleted, or the topic was recreated."""


class GroupsLost(Stop):
    """A least or greatest value of a group left, and the next one is not known: the groups must be built again."""


class TopicMoved(Stop):
    """Another topic has taken the place of the one that is read, which gets no more records: subscribe to that one."""

    def __init__(self, kafka_topic: str, moved_to: str) -> None:
        """Create it.

        Args:
            kafka_topic: the Kafka topic that was read.
            moved_to: the topic that has taken its place.
        """
        super().__init__(
            f"{kafka_topic} has moved, and gets no more records: {moved_to!r} has taken its place. Read that one, "
            "beginning with a snapshot"
        )
        self.moved_to = moved_to


class AcksMissing(Stop):
    """Requested acks have not come; the outcome of the records is not known."""


class DiskUnusable(Stop):
    """The disk of a local state takes or gives no data: full, over quota, read-only, failing, forbidden.

    Nothing is wiped: to restore needs the disk too. The SOW topic has everything, and a start on a disk that works
    goes on from there.
    """


class DiskFull(DiskUnusable):
    """There is no room, or the quota is used up."""


class UndeclaredOutput(Stop):
    """A processor forwarded to an output that it does not declare."""


def rejection(error: Exception) -> RecordRejected:
    """Turn an error into the rejection of the update that it was raised on.

    The error must not go further: updates are read when their key is due, and an error in a timer call ends the worker
    and every successor of it.

    Raises:
        Exception: it is no fault of the update.
    """
    if isinstance(error, RecordRejected):
        return error
    if isinstance(error, SowstreamError | MemoryError):
        raise error
    return RecordRejected("plugin_failed", f"{type(error).__name__}: {error}")


def unknown_name(noun: str, name: str, names: list[str]) -> str:
    """The message `there is no topic 'oders'; did you mean 'orders'?`."""
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(names)) or 'none'}"
    return f"there is no {noun} {name!r}; {hint}"


_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal may obey: all controls but tab and line feed, and those that turn the writing around."""


def without_controls(text: str) -> str:
    """A text that may quote a record, fit for a terminal: control characters become question marks.

    A terminal obeys them: it would be cleared, write to the clipboard, or show a text in another order.
    """
    return _CONTROLS.sub("?", text)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, for messages: `1 record`, `2,000 records`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
