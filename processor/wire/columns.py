"""Header names for Spark, which reads and writes headers as columns and not record by record.

Spark's expressions cannot be written here, as `pyspark` has one home. The rules for values are those of
`processor.wire.headers`: a number is `NUMBER_PATTERN` and 64 bits, a kind one of `KINDS`.
"""

from __future__ import annotations

from typing import Final, get_args

from processor.record import Kind
from processor.wire.headers import Name

VERSION: Final = Name.VERSION
KIND: Final = Name.KIND
EXPIRES_AT: Final = Name.EXPIRES_AT
SOURCE: Final = Name.SOURCE
REMOVED: Final = Name.REMOVED
EMPTY: Final = Name.EMPTY
COMMAND: Final = Name.COMMAND
REMOVE: Final = Name.REMOVE
CLIENT: Final = Name.CLIENT
SEQUENCE: Final = Name.SEQUENCE

NUMBER_PATTERN: Final = r"\A[0-9]{1,19}\z"
"""The digits of a number as a regular expression of Java, whose `$` would allow a line break at the end."""

KINDS: Final[tuple[str, ...]] = get_args(Kind)
"""The kinds of an update."""
