"""The privileges of the built-in processors over those of third parties, all in one place.

They are declared, hosted and tested like anybody's, with these exceptions:

- a `BuiltinContext`, with members for one user each: they may change with it, without notice;
- their outputs and states are not checked for wrong types (`hosting/forwarded.py`), as mypy has checked them, nor their
  keys and sources by the test driver (`testing/commit_check.py`);
- they import, besides this package, the pure ones: wire formats, merge rules, filters, codecs and settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from processor.api.context import Context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.codec.contract import Codec
    from processor.config import QueueConfig
    from processor.errors import RecordRejected
    from processor.record import Headers, Outgoing, Value
    from processor.wire.partition_marks import Lives


class BuiltinContext(Context, Protocol):
    """The `Context` of a built-in processor."""

    input_codec: Codec
    """The message type of the input records: that of the topic, or the underlying's where its records have another.
    Views read it: of a row of another view they make one of their own type."""
    lives: Lives
    """The versions with which new records begin; for the merge, which does not write records with `put`."""
    queues: tuple[tuple[str, QueueConfig], ...]
    """The queues over the processor's records, by name; only the merge has any."""

    def put_changed(
        self, records: Mapping[bytes, Value], headers: Headers | None = None
    ) -> dict[bytes, RecordRejected]:
        """Write those of many records that differ from what is there, as `put` and `delete` do, but faster.

        Views write the groups of a batch with it.

        Args:
            records: the full record of each key; None deletes the record, if there is one.
            headers: more headers for both outputs of each.

        Returns:
            The reason for each record that cannot be written, which stays as it was.

        Raises:
            TypeError, ValueError, UndeclaredOutput: as `put`; then no record is written.
        """

    def fits(self, output: str, record: Outgoing) -> bool:
        """Return whether the topic of an output takes a record, as far as its limit is known.

        A view asks that sends a record which stems from several input records: none of them could be rejected for it.
        """

    def skip_to(self, offset: int) -> None:
        """Go on with the input at an offset, if it is behind the next record; `punctuate` calls it.

        A view calls it that has taken all records before that offset from its table.
        """


def builtin_context(context: Context) -> BuiltinContext:
    """Return the context of a built-in processor with all of its members; the same object."""
    return cast("BuiltinContext", context)
