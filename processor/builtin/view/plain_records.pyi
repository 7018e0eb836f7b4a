from collections.abc import Container, Iterable, Mapping, Sequence

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
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: bytes) -> bool: ...
    def keys(self) -> list[bytes]: ...
    def totals(self, key: bytes) -> GroupTotals | None: ...
    def set_aside(self, count: int, others: Container[bytes]) -> dict[bytes, GroupTotals]: ...
    def unknown(self, groups: Iterable[bytes]) -> list[bytes]: ...
    def settle(self, aside: dict[bytes, GroupTotals | None]) -> None: ...
    def parts(
        self,
        changed: dict[bytes, None],
        others: Mapping[bytes, object],
        sent: set[bytes],
        outgoing: list[list[Outgoing]],
        added: list[bytes],
        left: list[bytes],
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
