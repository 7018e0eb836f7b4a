"""Records as Arrow tables, pandas frames and HTML tables, for notebooks and for programs that take Arrow."""

from __future__ import annotations

import html
from decimal import Decimal
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from processor.codec.json_value import to_json_line
from processor.errors import ConfigurationError, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.record import Value

Table: TypeAlias = Any
"""A `pyarrow.Table`; pyarrow is an extra and has no types."""
Array: TypeAlias = Any
"""A `pyarrow.Array`."""
Frame: TypeAlias = Any
"""A `pandas.DataFrame`; pandas is an extra."""

_ROWS_SHOWN: Final = 20
_COLUMNS_SHOWN: Final = 20
_CELL_SHOWN_MAX: Final = 60
"""Most characters of a value that are shown."""


def arrow_table(records: Iterable[tuple[str | None, Value]], key_column: str | None = None) -> Table:
    """The records as an Arrow table with a column for each field, in the order in which fields first appear.

    A field that a record lacks is null there; objects are structs, arrays are lists. Numbers keep every digit: a column
    whose numbers no type of 64 bits holds together has decimals, and texts if one of them has more than 76 digits.

    Args:
        records: keys and records.
        key_column: adds a first column of this name with the SOW keys.

    Raises:
        ConfigurationError: pyarrow is not installed, a record is no object, or a field has values of types that no
            column can hold together.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("tables need Arrow; install it: pip install 'sowstream[frames]'") from None
    rows = list(records)
    columns: dict[str, list[Value]] = {} if key_column is None else {key_column: [key for key, _ in rows]}
    for number, (key, record) in enumerate(rows):
        if not isinstance(record, dict):
            raise ConfigurationError(f"the record of {key!r} is no object, so that it has no columns")
        for name, value in record.items():
            column = columns.setdefault(name, [])
            column += [None] * (number - len(column))
            column.append(value)
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = _column([*values, *[None] * (len(rows) - len(values))])
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise ConfigurationError(
                f"field {name!r} has values that no column can hold together ({error}); leave it out: select=-/{name}"
            ) from None
    return pa.table(arrays)


def pandas_frame(records: Iterable[tuple[str | None, Value]], key_column: str | None = None) -> Frame:
    """The same as a pandas frame, in which integers with gaps have the type `Int64`. Errors as `arrow_table`."""
    table = arrow_table(records, key_column)
    try:
        import pandas as pd  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("frames need pandas; install it: pip install 'sowstream[frames]'") from None
    frame = table.to_pandas(integer_object_nulls=True)
    for name in table.column_names:
        column = table[name]
        if column.null_count and str(column.type) == "int64":  # pandas would make them floats, of 53 bits.
            frame[name] = column.to_pandas(types_mapper={column.type: pd.Int64Dtype()}.get)
    return frame


def _column(values: list[Value]) -> Array:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError):
        if not all(value is None or _is_number(value) for value in values):
            raise
    exact = [Decimal(repr(value)) if type(value) is float else value for value in values]
    try:
        return pa.array([Decimal(value) if type(value) is int else value for value in exact])
    except pa.ArrowException:
        return pa.array([None if value is None else to_json_line(value) for value in values])


def _is_number(value: Value) -> bool:
    if type(value) is Decimal:
        return value.is_finite()
    return type(value) is int or (type(value) is float and isfinite(value))


def html_table(records: Mapping[str, Value]) -> str:
    """The first records as an HTML table, with their number; texts are escaped."""
    shown = list(islice(records.items(), _ROWS_SHOWN))
    names: dict[str, None] = {}
    for _, record in shown:
        names |= dict.fromkeys(record if isinstance(record, dict) else ())
    columns = list(names)[:_COLUMNS_SHOWN]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("key", *columns))
    body = "".join(
        f"<tr><th>{html.escape(key)}</th>{''.join(_cell(record, name) for name in columns)}</tr>"
        for key, record in shown
    )
    counts = counted(len(records), "record") + (f", {len(shown)} shown" if len(shown) < len(records) else "")
    if len(names) > len(columns):
        counts += f"; {len(columns)} of {len(names)} fields"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{counts}</p>"


def _cell(record: Value, name: str) -> str:
    if not isinstance(record, dict) or name not in record:
        return "<td></td>"
    value = record[name]
    text = value if isinstance(value, str) else to_json_line(value)
    shown = text if len(text) <= _CELL_SHOWN_MAX else f"{text[:_CELL_SHOWN_MAX]}…"
    return f"<td>{html.escape(shown)}</td>"
