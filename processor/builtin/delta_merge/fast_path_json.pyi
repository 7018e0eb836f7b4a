from collections.abc import Callable, Sequence

from processor.api import Header, Outgoing, Record, Stored, Value
from processor.wire.partition_marks import Lives

class CompiledDeltas:
    def __init__(
        self,
        *,
        read: Callable[[bytes], Value],
        write: Callable[[Value], bytes],
        survives: Callable[[bytes, bytes], bool],
        names: tuple[bytes, ...],
        null_policy: str,
        bytes_max: int,
        key_bytes_max: int,
        depth_max: int,
        lives: Lives,
        insert: Header,
        empty: Header,
        version_name: str,
        stored: type[Stored],
        partition: int,
        partitions: int,
    ) -> None: ...
    def __call__(
        self,
        records: Sequence[Record],
        states: dict[bytes, Stored | None],
        changed: dict[bytes, Stored | None],
        sow: list[Outgoing],
        delta: list[Outgoing],
        take: Callable[[Record], int],
        is_full: Callable[[int], bool],
        /,
    ) -> tuple[int, int]: ...
