"""Finds values of JSON that Spark's `from_json` puts into a column as another value, without an error.

`from_json` rounds decimals, and whole numbers in columns of doubles; makes infinity of 1e400 and -56 of 200 in a
TINYINT; takes `12:00:00` for a time of today, and the text `1,5` for the decimal 15; and reads the first of two records
in one text. Every such record has a sign that is cheap to see: `_is_doubtful`. Only where it has one, it is parsed once
more, into columns with room for its digits. `read/values.py` has the same rules for values that are decoded in Python.

Conditions are texts of SQL: a wide schema has thousands of expressions, and each would be a call to Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_integration.foundation.sql import LONGEST, OUT_OF_RANGE, TINY_NUMBER, literal, quoted
from spark_integration.read.mask import FROM_JSON

_DIGITS: Final = 38
"""Digits of Spark's longest decimal."""
_MORE: Final = 9
"""Digits more than a long decimal's scale to look at."""
_EXACT: Final[Mapping[type[DataType], int]] = {FloatType: 2**24, DoubleType: 2**53}
"""The numbers up to which these types have every whole number."""
_NO_NUMBERS: Final = "('NaN', 'Infinity', '+Infinity', '-Infinity', 'INF', '+INF', '-INF')"
"""The texts that a column of doubles takes."""
_LONG: Final = """'[0-9.]{16,}|"-?Infinity"'"""
"""The parts of a text that Spark has made of a number with too many digits, or too large."""
_TINY: Final = "'(?<![0-9.])[0.]*+[1-9][0-9.]*+[eE]-[0-9]{2}'"
"""A number that the longest decimal may have as zero."""
_TIME_ALONE: Final = r"[\x00-\x20\x7f]*+(?:T[0-9]|[0-9]{1,2}:)"
"""The beginning of a time without a date; Spark leaves out what stands before it."""
_TIME_OF_DAY: Final = rf"""["'](?:{_TIME_ALONE}|[T0-9\x00-\x20\x7f]*+\\)"""
"""The beginning of a text that may be such a time: an escape may stand for any character of it."""
_COMMA: Final = r"""["'](?:(?:[0-9.eE+-]++,|,[0-9.])[0-9.,eE+-]*+["']|[0-9.,eE+-]*+\\)"""
"""A text whose commas Spark leaves out, to read a decimal; an escape may stand for one."""
_EXPONENT: Final = r"[eE][+-]?[\p{Nd},]{5}"
"""A long exponent; quick to look for, and also in many hashes."""
_ESCAPE: Final = r"\\u(?!00[46]5)[01aAfF][0-9A-Fa-f]{3}"
"""An escape that may stand for a digit, in any script, or a sign; not for the letter e."""
_NUMBER: Final = (
    rf"(?:\\?[+\-\p{{Nd}}.]|{_ESCAPE})*+(?:\\?[eE]|\\u00[46]5)(?:\\?[+-])?(?:\\?[\p{{Nd}},]|{_ESCAPE}){{5}}+"
)
"""A number up to the fifth digit of its exponent; an escape may stand for each character."""
_WITH_EXPONENT: Final = rf"""["']{_NUMBER}(?:\\?[\p{{Nd}},]|{_ESCAPE})*+["']|[:,\[\s/]{_NUMBER}"""
"""A text of a number with a long exponent, or the beginning of such a number. Each comma is a beginning and goes on
nowhere, so that a long array of numbers is gone through once."""
_BACKSLASH: Final = literal("\\")
_LONG_NUMBER: Final = (
    rf"""(?<![\p{{Nd}}.])[\p{{Nd}}.]{{{LONGEST}}}|["'](?:\\?[+\-\p{{Nd}}.,]|{_ESCAPE}){{{LONGEST}}}+"""
)
_ANY_ESCAPE: Final = r"\\(?:u[0-9A-Fa-f]{4}|[^u\\])"
_IN_A_LOCALE: Final = (
    rf"""["'](?:[^"'\p{{L}}\p{{Nd}}^\\]*+(?:\p{{Nd}}|{_ANY_ESCAPE})[^"'\p{{L}}^\\]*+"""
    r"""(?:\\|[\p{L}^][^"'\p{Nd}\\]{0,5}+(?:\\|\p{Nd}{5}))"""
    rf"""|(?:[^"'\p{{L}}\\]|{_ANY_ESCAPE}){{{LONGEST}}}+)"""
)
"""A text that begins as a number, with a long exponent behind any letters, or without a letter for long; an escape may
stand for each of its characters."""
_STRING: Final = r'(?s)"(?:[^"\\]|\\.)*+(?:"|\\?\z)'
"""A string of JSON; one without an end goes on to the end of the text, so that nothing is gone through twice, also with
a line break behind a backslash. The quantifier is possessive: Java's stack has no room for another one's 5,000
characters."""
_IS_STRANGE_YEAR: Final = "year({0}) NOT BETWEEN 1 AND 9999"


class _Reading(NamedTuple):
    """A text, and the way in which `from_json` has read it."""

    text: str
    """The record as JSON, in SQL."""
    options: str
    """The options, in SQL."""
    has_time_format: bool
    """True if a format of its own reads timestamps, in which a time may come first."""
    has_locale: bool
    """True if a locale reads the decimals of texts."""

    @classmethod
    def of(cls, text: str, options: Mapping[str, str]) -> _Reading:
        """A text in SQL, read with options."""
        names = {name.lower() for name in options}
        pairs = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in options.items())
        return cls(text, f"map({pairs})", "timestampformat" in names, "locale" in names)


def out_of_range(text: str, struct: StructType, options: Mapping[str, str] = FROM_JSON) -> str:
    """The columns with a decimal that `from_json` may not read, as an array of texts for an error; null where none has.

    Where the array has an element, `from_json` with these columns may take hours and all memory.

    Args:
        text: the record as JSON, in SQL.
        struct: its columns.
        options: those with which `from_json` will read it.
    """
    fields = [field for field in struct.fields if _has_decimals(field.dataType)]
    if not fields:
        return "CAST(NULL AS ARRAY<STRING>)"
    # A name that no column has.
    mark = StructField(max((field.name for field in fields), key=len) + "_", StringType())
    texts = StructType([*(StructField(field.name, _with_texts(field.dataType)) for field in fields), mark])

    # from_json makes a text of the double next to a number: "Infinity" of 1e300000000, and 0.0 of 1e-300000000.
    no_decimal, tiny = literal(f"(?U)Infinity|{OUT_OF_RANGE}"), literal(TINY_NUMBER)

    def is_out_of_range(field: StructField) -> str:
        is_any = partial(_has, kind=field.dataType, texts=f"exact.{name_of(field)}")
        is_huge = is_any(lambda number: f"(length({number}) > {LONGEST} OR {number} RLIKE {no_decimal})")
        is_zero = is_any(lambda number: f"{number} RLIKE '^-?0[.]0$'")
        # Once for all numbers of a field: an array may have as many as the text has characters.
        return f"{is_huge} OR ({is_zero}) AND {text} RLIKE {tiny}"

    names = [f"IF({is_out_of_range(field)}, {shown(field)}, NULL)" for field in fields]
    # Then there may be values that the columns do not show; Spark's variant refuses names that occur twice.
    is_unknown = f"exact IS NULL OR exact.{name_of(mark)} IS NOT NULL OR try_parse_json({text}) IS NULL"
    names.append(f"IF({is_unknown}, {literal('a number with an exponent of more than four digits')}, NULL)")
    reading = _Reading.of(text, {**options, "columnNameOfCorruptRecord": mark.name})
    has_sign = f"({text} RLIKE {literal(_EXPONENT)} OR contains({text}, {_BACKSLASH}))"
    signs = [
        f"{has_sign} AND {text} RLIKE {literal(_WITH_EXPONENT)}",
        f"length({text}) > {LONGEST} AND {text} RLIKE {literal(_LONG_NUMBER)}",
    ]
    if reading.has_locale:
        signs.append(f"{text} RLIKE {literal(_IN_A_LOCALE)}")
    return f"IF({' OR '.join(signs)}, {_named(reading, texts, names)}, NULL)"


def inexact(text: str, record: str, struct: StructType, options: Mapping[str, str] = FROM_JSON) -> str:
    """The columns that have another value than the record, as an array of texts for an error; null where none may have.

    Of a text with more than one record in it, the first element is empty.

    Args:
        text: the record as JSON, in SQL.
        record: what `from_json` made of it, in SQL.
        struct: its columns.
        options: those with which `from_json` has read it.
    """
    reading = _Reading.of(text, options)
    fields = [field for field in struct.fields if _exact_type(field.dataType) is not None]
    wide = StructType([StructField(field.name, _exact_type(field.dataType) or field.dataType) for field in fields])

    def is_other(field: StructField) -> str:
        exact = f"exact.{name_of(field)}"
        other = _is_other(field.dataType, f"{record}.{name_of(field)}", exact, reading)
        if not _has_decimals(field.dataType):
            return other
        is_zero = _has(lambda number: f"{number} = 0", field.dataType, exact)
        return f"{other} OR ({is_zero}) AND {text} RLIKE {_TINY}"

    several = f"IF({is_several(text)}, '', NULL)"
    found = _named(reading, wide, [several, *(f"IF({is_other(field)}, {shown(field)}, NULL)" for field in fields)])
    with_decimals = [field for field in fields if _has_decimals(field.dataType)]
    if with_decimals and not reading.has_locale:
        texts = StructType([StructField(field.name, _with_texts(field.dataType)) for field in with_decimals])
        has_comma = [f"IF({_has(_has_comma, field.dataType, f'exact.{name_of(field)}')}, {shown(field)}, NULL)"
                     for field in with_decimals]  # fmt: skip
        commas = f"IF({text} RLIKE {literal(_COMMA)}, {_named(reading, texts, has_comma)}, array())"
        found = f"array_union({found}, {commas})"
    return f"IF({_is_doubtful(reading, record, struct)}, {found}, NULL)"


def _named(reading: _Reading, struct: StructType, names: list[str]) -> str:
    """The names that are not null; each is an expression over `exact`, the text in other columns."""
    # A function of arrays is not compiled: its code would be too long for Java. In an array the text is parsed once.
    parsed = f"from_json({reading.text}, {literal(ddl(struct))}, {reading.options})" if struct.fields else "0"
    named = f"exact -> filter(array({', '.join(names)}), name -> name IS NOT NULL)"
    return f"element_at(transform(array({parsed}), {named}), 1)"


def _is_doubtful(reading: _Reading, record: str, struct: StructType) -> str:
    """A condition that is false for nearly all records, and true for those in which a column may be inexact."""
    # Behind a record, from_json reads nothing.
    text, pairs = reading.text, ("}{", "} {", "}\n{")
    signs = [
        f"NOT startswith({text}, '{{')",
        f"NOT endswith({text}, '}}')",
        *(f"contains({text}, '{p}')" for p in pairs),
    ]
    kinds = list(_leaves(struct))
    if decimals := [kind for kind in kinds if isinstance(kind, DecimalType)]:
        # More digits behind a point than the column has, or an exponent that may mean as much.
        digits = min(kind.scale for kind in decimals) + 1
        if any(kind.precision > _DIGITS - _MORE for kind in decimals):
            digits = 1
        signs.append(f"{text} RLIKE {literal(f'[.][0-9]{{{digits}}}|[0-9][eE]-|{_COMMA}')}")
    if any(isinstance(kind, TimestampType) for kind in kinds) and not reading.has_time_format:
        signs.append(f"{text} RLIKE {literal(_TIME_OF_DAY)}")
    return f"coalesce({' OR '.join((*signs, *_strange(record, struct)))}, false)"


def is_several(text: str) -> str:
    """Return whether a text is anything but one object."""
    bare = f"trim(translate({text}, '\t\r\n', '   '))"
    # Braces without a comma between them are in no text of JSON, except in a string.
    without_strings = f"regexp_replace({bare}, {literal(_STRING)}, '')"
    return f"(NOT startswith({bare}, '{{') OR NOT endswith({bare}, '}}') OR {without_strings} RLIKE '[}}][ ]*[{{]')"


def shown(field: StructField) -> str:
    """A field with its type, for an error, in SQL."""
    return literal(f"/{field.name} is not {field.dataType.simpleString():.100}")


def ddl(kind: DataType) -> str:
    """A type in SQL, with quoted names."""
    match kind:
        case StructType(fields=fields):
            return f"struct<{', '.join(f'{name_of(field)}: {ddl(field.dataType)}' for field in fields)}>"
        case ArrayType(elementType=inner):
            return f"array<{ddl(inner)}>"
        case MapType(keyType=key, valueType=inner):
            return f"map<{ddl(key)}, {ddl(inner)}>"
        case TimestampType():
            return "timestamp_ltz"  # What `timestamp` means is a setting of the session.
        case _:
            return kind.simpleString()


def name_of(field: StructField) -> str:
    """The name of a field in SQL."""
    return quoted([field.name])


def _leaves(kind: DataType) -> Iterator[DataType]:
    match kind:
        case StructType(fields=fields):
            for field in fields:
                yield from _leaves(field.dataType)
        case ArrayType(elementType=inner) | MapType(valueType=inner):
            yield from _leaves(inner)
        case _:
            yield kind


def _has_decimals(kind: DataType) -> bool:
    return any(isinstance(leaf, DecimalType) for leaf in _leaves(kind))


def _strange(value: str, kind: DataType, level: int = 0) -> Iterator[str]:
    """Conditions that are true of values that may be others than those in the record."""
    match kind:
        case StructType(fields=fields):
            for field in fields:
                yield from _strange(f"{value}.{name_of(field)}", field.dataType, level)
        case ArrayType(elementType=StringType()):
            # Compiled, as a function with a lambda is not.
            yield f"array_join({value}, ',') RLIKE {_LONG}"
        case ArrayType(elementType=inner):
            if conditions := list(_strange(f"e{level}", inner, level + 1)):
                yield f"exists({value}, e{level} -> {' OR '.join(conditions)})"
        case MapType(valueType=inner):
            yield from _strange(f"map_values({value})", ArrayType(inner), level)
        case DoubleType() | FloatType():
            yield f"isnan({value}) OR abs({value}) >= {_EXACT[type(kind)]}"
        case ByteType():
            yield f"{value} < 0"
        case TimestampType() | TimestampNTZType() | DateType():
            yield _IS_STRANGE_YEAR.format(value)
        case StringType():
            # The first byte of everything but a text; comparing it is much cheaper than the expression.
            first = f"substring({value}, 1, 1)"
            yield f"""(({first} BETWEEN '"' AND '9' OR {first} IN ('[', '{{')) AND {value} RLIKE {_LONG})"""


def _exact_type(kind: DataType) -> DataType | None:
    """The type with room for what a record has in a column of this type; None where `from_json` loses nothing."""
    match kind:
        case StructType(fields=fields):
            exact = [(field.name, _exact_type(field.dataType)) for field in fields]
            inner = [StructField(name, one) for name, one in exact if one is not None]
            return StructType(inner) if inner else None
        case ArrayType(elementType=inner):
            one = _exact_type(inner)
            return None if one is None else ArrayType(one)
        case MapType(valueType=inner):
            one = _exact_type(inner)
            return None if one is None else MapType(StringType(), one)
        case DecimalType(precision=precision, scale=scale):
            return DecimalType(_DIGITS, min(_DIGITS, max(_DIGITS - precision + scale, scale + _MORE)))
        case DoubleType() | FloatType() | ByteType() | StringType() | DateType() | TimestampType() | TimestampNTZType():
            return StringType()
        case _:
            return None


def _with_texts(kind: DataType) -> DataType:
    """The type with texts in the place of decimals."""
    match kind:
        case StructType(fields=fields):
            return StructType([StructField(field.name, _with_texts(field.dataType)) for field in fields])
        case ArrayType(elementType=inner):
            return ArrayType(_with_texts(inner))
        case MapType(valueType=inner):
            return MapType(StringType(), _with_texts(inner))
        case _:
            return StringType()


def _has(condition: Callable[[str], str], kind: DataType, texts: str, level: int = 0) -> str:
    """Return whether a decimal meets a condition; `texts` has the texts of decimals."""
    match kind:
        case StructType(fields=fields):
            parts = [_has(condition, field.dataType, f"{texts}.{name_of(field)}", level) for field in fields
                     if _has_decimals(field.dataType)]  # fmt: skip
            return " OR ".join(f"coalesce({part}, false)" for part in parts)
        case ArrayType(elementType=inner):
            return f"exists({texts}, c{level} -> coalesce({_has(condition, inner, f'c{level}', level + 1)}, false))"
        case MapType(valueType=inner):
            return _has(condition, ArrayType(inner), f"map_values({texts})", level)
        case _:
            return condition(texts)


def _has_comma(number: str) -> str:
    return f"contains({number}, ',')"


def _is_other(kind: DataType, value: str, exact: str, reading: _Reading, level: int = 0) -> str:
    """Return whether a value is another one than the record has; `exact` has its digits."""
    match kind:
        case StructType(fields=fields):
            others = [
                _is_other(field.dataType, f"{value}.{name_of(field)}", f"{exact}.{name_of(field)}", reading, level)
                for field in fields
                if _exact_type(field.dataType) is not None
            ]
            return " OR ".join(f"coalesce({other}, false)" for other in others)
        case ArrayType(elementType=inner):
            other = _is_other(inner, f"v{level}", f"x{level}", reading, level + 1)
            return f"exists(zip_with({value}, {exact}, (v{level}, x{level}) -> coalesce({other}, false)), o -> o)"
        case MapType(valueType=inner):
            return _is_other(ArrayType(inner), f"map_values({value})", f"map_values({exact})", reading, level)
        case DecimalType(scale=scale):
            # Not by comparing: of two long decimals Spark would round one first.
            return f"(NOT CAST({exact} AS STRING) RLIKE '^-?[0-9]+([.][0-9]{{0,{scale}}}0*)?$')"
        case ByteType():
            return f"{value} != try_cast({exact} AS INT)"
        case TimestampType():
            is_time_alone = "false" if reading.has_time_format else f"{exact} RLIKE {literal(f'^{_TIME_ALONE}')}"
            return f"({_IS_STRANGE_YEAR.format(value)} OR {is_time_alone})"
        case DateType() | TimestampNTZType():
            return _IS_STRANGE_YEAR.format(value)
        case StringType():
            return f"exists(regexp_extract_all({value}, {_LONG}, 0), run -> NOT contains({reading.text}, run))"
        case _:
            return _is_other_number(kind, value, exact)


def _is_other_number(kind: DataType, value: str, exact: str) -> str:
    """A whole number must be there to its last digit; another one is the nearest of the type, and not infinite."""
    # Spark would make a decimal of the shortest text of a double; as a long it has all digits.
    is_held = f"coalesce(try_cast({exact} AS DECIMAL({_DIGITS},0)) = try_cast({value} AS LONG), false)"
    is_rounded = f"(abs({value}) >= {_EXACT[type(kind)]} AND {exact} RLIKE '^-?[0-9]+$' AND NOT {is_held})"
    is_finite = f"(NOT isnan({value}) AND abs({value}) != double('infinity'))"
    return f"IF({is_finite}, {is_rounded}, {exact} NOT IN {_NO_NUMBERS})"
