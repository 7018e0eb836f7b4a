class Rows:
    count: int
    def take(self) -> list[bytes]: ...

class Chunk:
    def __init__(
        self,
        rows: int,
        key_ends: int,
        keys: int,
        values_valid: int,
        values_bit: int,
        value_ends: int,
        values: int,
        offsets: int,
        header_ends: int,
        name_ends: int,
        names: int,
        texts_valid: int,
        texts_bit: int,
        text_ends: int,
        texts: int,
        repeats: int,
        /,
    ) -> None: ...
