from collections.abc import Callable, Iterable, Mapping, Sequence

from processor.api import Record, Stored

def groups_of(records: Iterable[Record]) -> list[tuple[Record, bytes]]: ...

class PlainGroup:
    members: int
    @property
    def values_kept(self) -> int: ...

class PlainGroups:
    def __init__(
        self,
        kinds: list[str],
        fields: Sequence[tuple[bytes, str, int]] | None,
        number: Callable[[str, int, int, int], bytes | None],
        stored: type[Stored],
    ) -> None: ...
    def group(self, key: bytes, values: Iterable[bytes]) -> PlainGroup | None: ...
    def fold(
        self,
        parts: Sequence[tuple[Record, bytes]],
        rows: dict[bytes, Stored | None],
        groups: Mapping[bytes, object],
        others: list[tuple[bytes, bytes, bytes | None, bytes | None]],
    ) -> None: ...
    def row(self, group: PlainGroup) -> bytes | None: ...
    def part(self, group: PlainGroup) -> tuple[bytes, list[int | list[int | float | None]]]: ...
