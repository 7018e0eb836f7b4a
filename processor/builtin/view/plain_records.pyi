from collections.abc import Container, Iterable, Sequence

from processor.api import Outgoing, Record, Stored
from processor.wire.view_parts import GroupTotals

class PlainRecords:
    has_set_aside: bool
    def __init__(
        self,
        *,
        group_name: bytes,
        names: list[bytes],
        states: Sequence[tuple[int, str]],
        partition: int,
        stored: type[Stored],
        kept_max: int,
        room_max: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: bytes) -> bool: ...
    def keys(self) -> list[bytes]: ...
    def totals(self, key: bytes) -> GroupTotals | None: ...
    def set_aside(self, count: int, others: Container[bytes]) -> dict[bytes, GroupTotals]: ...
    def begin_refill(self) -> None: ...
    def refill(self, value: bytes) -> bool: ...
    def end_refill(self) -> None: ...
    def unknown(self, groups: Iterable[bytes]) -> list[bytes]: ...
    def settle(self, aside: dict[bytes, GroupTotals | None]) -> None: ...
    def parts(
        self,
        changed: dict[bytes, None],
        others: Container[bytes],
        sent: set[bytes],
        outgoing: list[list[Outgoing]],
        added: list[bytes],
        left: list[bytes],
        held: list[bytes],
    ) -> list[bytes]: ...
    def add(self, value: bytes, changed: dict[bytes, None]) -> bool: ...
    def others(self, records: Iterable[Record]) -> list[Record]: ...
    def fold(
        self,
        records: Sequence[Record],
        rows: dict[bytes, Stored | None],
        changes: dict[bytes, Stored | None],
        changed: dict[bytes, None],
        added: list[Record],
        removed: list[tuple[bytes, bytes]],
        after: bytes | None,
        is_complete: bool,
    ) -> None: ...
