"""The first versions of lives in a batch merge, which takes the keys one by one and may have no offsets of Kafka."""

from __future__ import annotations

from typing import Final

from processor.wire.partition_marks import Lives, first_version

MADE_OFFSETS: Final = 1 << 42
"""The lowest offset that is none of Kafka's: of messages in files, and of moved records. A partition that takes a
million records a second reaches it after fifty days."""


class KeyLives(Lives):
    """The first versions of the lives of each key: those of a worker, for input with the offsets of the input topic.

    Other input has no worker to agree with: a life begins above the one before it, and above all lives that have ended
    before the history.
    """

    def __init__(self, base: int = 0, begin: int = 0) -> None:
        """Begin with the base of a partition, and with the first input offset of the history."""
        super().__init__(base=base)
        self.begin = begin
        """The input offset whose version a life gets at least that begins with input of another offset."""
        self._ended: dict[bytes, int] = {}
        self._staged: dict[bytes, int] = {}

    def first_version(self, key: bytes, offset: int) -> int:
        """Return the version of a record that the command at an offset inserts."""
        return self.after(self.ended_at(key), offset)

    def after(self, ended: int, offset: int) -> int:
        """Return the same for a key whose last life has ended at a version; 0: it had none."""
        return max(first_version(self.base, self.begin if offset >= MADE_OFFSETS else offset), ended + 1)

    def ended_at(self, key: bytes) -> int:
        """Return the version with which the last life of a key has ended; 0 if none has."""
        return self._staged.get(key) or self._ended.get(key, 0)

    def end(self, key: bytes, version: int) -> None:
        """Note the version with which the life of a key has ended, until `apply` or `drop`."""
        self._staged[key] = version

    def settle(self, next_offset: int) -> None:
        """Do nothing: the result of a merge has all versions, and the hand-over writes the mark."""

    def apply(self) -> None:
        """Take over the ends that were noted."""
        self._ended |= self._staged
        self._staged = {}

    def drop(self) -> None:
        """Forget the ends that were noted since `apply`."""
        self._staged = {}

    def keep(self, key: bytes | None) -> None:
        """Forget all keys but one, after `apply`."""
        self._ended = {key: self._ended[key]} if key is not None and key in self._ended else {}
