from collections.abc import Callable, Iterator

from processor.record import Record

def records_of(
    rows: Iterator[tuple[bytes, bytes]],
    rows_max: int,
    bytes_max: int,
    over: dict[bytes, Record],
    record_type: type[Record],
    version_name: str,
    other: Callable[[bytes, bytes], Record],
) -> tuple[list[Record], bool]: ...
