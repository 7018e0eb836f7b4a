from collections.abc import Callable, Iterator
from typing import Any

from processor.record import Record, Value
from processor.subscriptions.request.record_order import SortKey

class MemberKeys:
    def __init__(
        self,
        name: bytes,
        *,
        is_falling: bool,
        parse: Callable[[bytes], Value],
        ranked: Callable[[Value], tuple[int, Any]],
        is_over: Callable[[Record, int], bool],
    ) -> None: ...
    def scan(
        self,
        records: Iterator[Record],
        records_max: int,
        bytes_max: int,
        over_ms: int,
        left_out: dict[bytes, SortKey | None],
        key_of: Callable[[Record], SortKey],
        sort_keys: dict[bytes, SortKey],
        scanned: list[SortKey],
        first: list[SortKey],
        first_end: SortKey | None,
    ) -> bool: ...
