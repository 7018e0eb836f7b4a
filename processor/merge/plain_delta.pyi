from collections.abc import Callable, Mapping

from processor.record import Headers, Outgoing, Stored

class PlainDelta:
    def __init__(
        self, names: list[bytes], stored: type[Stored], headers_of_version: Callable[[int], Headers]
    ) -> None: ...
    def updates(
        self,
        records: Mapping[bytes, bytes | None],
        states: dict[bytes, Stored | None],
        changes: dict[bytes, Stored | None],
        sow: list[Outgoing],
        deltas: list[Outgoing],
    ) -> dict[bytes, bytes | None]: ...
    def __call__(self, old: bytes, new: bytes) -> bytes | None: ...
