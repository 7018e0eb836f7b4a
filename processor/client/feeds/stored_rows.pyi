from collections.abc import Callable, Iterator

from processor.record import Headers, Record

def records_of(
    rows: Iterator[tuple[bytes, bytes]],
    rows_max: int,
    bytes_max: int,
    over: dict[bytes, Record],
    record_type: type[Record],
    headers_of_version: Callable[[int], Headers],
    other: Callable[[bytes, bytes], Record],
) -> tuple[list[Record], bool]: ...
