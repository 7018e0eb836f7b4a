from collections.abc import Callable

from processor.builtin.delta_merge.fast_path_json import CompiledDeltas
from spark_integration.merge.batch.runs.arrow_rows import Chunk, Rows

def is_written(message: bytes, /) -> bool: ...

class JsonRuns:
    sow: Rows
    delta: Rows
    def __init__(
        self,
        texts: CompiledDeltas,
        read_acks: Callable[[bytes], object],
        *,
        deltas: bool,
        publishes: bool,
        base: int,
        begin: int,
        made_offsets: int,
    ) -> None: ...
    def take_log(self) -> tuple[list[bytes], bytes, bytes, bytes, bytes] | None: ...
    def merge(
        self,
        chunk: Chunk,
        begin: int,
        is_continued: bool,
        is_left: bool,
        state: tuple[int, bytes] | None,
        ended: int,
        /,
    ) -> tuple[int, list[tuple[int, int]], list[tuple[bytes, int, bytes | None, int, bool, int]], int, int, int]: ...
