"""Random records of one schema as JSON text, and random filters for them."""

import random

from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType, StructType

PLACE = StructType().add("zip", "string").add("n", "long").add("at", StructType().add("lat", "double"))
LEG = StructType().add("n", "long").add("ccy", "string").add("open", "boolean").add("notes", ArrayType(StringType()))
SCHEMA = (
    StructType()
    .add("id", "long")
    .add("qty", "integer")
    .add("px", "double")
    .add("amount", DecimalType(12, 2))
    .add("name", "string")
    .add("a b", "string")
    .add("open", "boolean")
    .add("to", PLACE)
    .add("tags", ArrayType(StringType()))
    .add("nums", ArrayType(LongType()))
    .add("grid", ArrayType(ArrayType(LongType())))
    .add("legs", ArrayType(LEG))
)

LONGS = ["0", "1", "-1", "2", "10", "9007199254740993", "9223372036854775807", "-9223372036854775808"]
INTS = ["0", "1", "-1", "2", "10", "2147483647"]
# What a double rounds, what is written with an exponent or as a whole number, and neighbours of the constants.
DOUBLES = [
    *("0", "-0.0", "1", "1.5", "0.1", "0.10000000000000001", "0.30000000000000004", "0.30000000000000003", "1e-7"),
    *("0.12345678901234567890", "0.12345678901234568", "1E23", "99999999999999991611392", "1.0e1", "10", "-2.5"),
]
DECIMALS = [
    *("0", "1", "1.00", "1.005", "1.0049", "10.25", "10.2549", "10.254", "10.26", "-10.25", "1e2", "-0.001", "0.1"),
]
TEXTS = ["", "a", "abc", "b", "xyz", "10", "2.0", "-1", "true", "{a", "[1]", "ab\n", "a b", "É", "e\u0301", "𝄞", "/x"]

NUMBERS_MEANT = [
    *("0", "1", "-1", "2", "10", "1.5", "0.1", "0.30000000000000004", "1e-7", "0.12345678901234568", "1e23", "10.25"),
    *("1.005", "-0.001", "9007199254740993", "9007199254740992.0", "9223372036854775808", "-1e19", "1e300", "10.254"),
]
TEXTS_MEANT = ["'a'", "'abc'", "'10'", "'b'", "'true'", "'[1]'", "'É'", "'ab\\n'", "''", "'{a'"]
PATTERNS = [
    *("a", "^a", "b$", "^abc$", "", "[0-9]", "^a.?b", r"^\\w+$", r"a\\sb", "a.b", "[^a]b", "x*yz", "^.$", "b.$"),
    *(r"\\d", "(a|b)c", "(?i)A", "^\\\\[", r"a\\b", "a{1,2}b", "[a-c]{2}", "é|É"),
]
LONG_PATHS = ["/id", "/qty", "/to/n", "/nums", "/nums[1]", "/grid", "/grid[0]", "/grid[0][1]", "/legs/n", "/legs[0]/n"]
NUMBER_PATHS = ["/px", "/px", "/amount", "/amount", "/to/at/lat", "/open", "/legs/open"]
TEXT_PATHS = ["/name", "/name", "/'a b'", "/to/zip", "/tags", "/tags[0]", "/legs/ccy", "/legs[1]/ccy", "/legs/notes"]
ANY_PATHS = [*LONG_PATHS, *NUMBER_PATHS, *TEXT_PATHS, "/to", "/legs", "/to/at", "/nowhere", "/legs/n[0]", "/name/x"]
COMPARISONS = ["=", "!=", "<", "<=", ">", ">="]

SHARP = [
    *("/px = 0.30000000000000004", "/px <= 0.12345678901234568", "/px < 1e23", "NOT /px = 0.1", "/px IN (10, 0.1)"),
    *("/to/at/lat BETWEEN 0.1 AND 1e23", "/amount = 1.005", "/amount > 10.25", "/amount <= 1.00", "/qty != 0.5"),
    *(
        "/id < 9223372036854775808",
        "/legs/n >= -9223372036854775809",
        "NOT (/id + 1 > 2)",
        "NOT /open",
        "/tags IS NULL",
    ),
    *(
        "/name LIKE 'b$'",
        "/name LIKE 'a.b$'",
        "/name LIKE r'^a.*\\s$'",
        "/to IS NOT NULL",
        "/name NOT IN ('', 'a', '10')",
    ),
]
"""Filters that distinguish nearly equal values, where a type rounds or a bound is passed."""


def record(rng: random.Random) -> str:
    """A random record that fits the schema."""
    leg = {"n": LONGS, "ccy": TEXTS, "open": ["true", "false"], "notes": lambda: _array(rng, lambda: _text(rng))}
    place = {"zip": TEXTS, "n": LONGS, "at": lambda: _object(rng, {"lat": DOUBLES})}
    return _object(
        rng,
        {
            "id": LONGS,
            "qty": INTS,
            "px": DOUBLES,
            "amount": DECIMALS,
            "name": TEXTS,
            "a b": TEXTS,
            "open": ["true", "false"],
            "to": lambda: _object(rng, place),
            "tags": lambda: _array(rng, lambda: _text(rng)),
            "nums": lambda: _array(rng, lambda: rng.choice(LONGS)),
            "grid": lambda: _array(rng, lambda: _array(rng, lambda: rng.choice(LONGS))),
            "legs": lambda: _array(rng, lambda: _object(rng, leg)),
        },
    )


def _object(rng, members):
    """An object with some of these members, some of them null."""
    made = []
    for name, values in members.items():
        if rng.random() < 0.8:
            value = values() if callable(values) else _text(rng) if values is TEXTS else rng.choice(values)
            made.append(f'"{name}":{"null" if rng.random() < 0.1 else value}')
    return "{" + ",".join(made) + "}"


def _array(rng, element):
    return "[" + ",".join("null" if rng.random() < 0.15 else element() for _ in range(rng.randrange(4))) + "]"


def _text(rng):
    return '"' + rng.choice(TEXTS).replace("\n", "\\n") + '"'


def filter_text(rng: random.Random, depth: int = 2) -> str:
    """A random filter, most parts of which have an equivalent in Spark SQL."""
    if depth and rng.random() < 0.6:
        if rng.random() < 0.25:
            return f"NOT ({filter_text(rng, depth - 1)})"
        word = rng.choice([" AND ", " OR "])
        return word.join(f"({filter_text(rng, depth - 1)})" for _ in range(rng.choice([2, 2, 3])))
    return _predicate(rng)


def _predicate(rng):
    kind = rng.randrange(12)
    path, meant = (
        (rng.choice(LONG_PATHS + NUMBER_PATHS), NUMBERS_MEANT)
        if rng.random() < 0.5
        else (rng.choice(TEXT_PATHS), TEXTS_MEANT)
    )
    constant = rng.choice(meant)
    if rng.random() < 0.1:
        constant = rng.choice([*NUMBERS_MEANT, *TEXTS_MEANT, "TRUE", "NULL", "(1 + 1)"])
    compared = rng.choice(COMPARISONS)
    if kind == 0:
        return f"{rng.choice(ANY_PATHS)} IS {rng.choice(['', 'NOT '])}NULL"
    if kind == 1:
        return f"{path} {rng.choice(['', 'NOT '])}IN ({', '.join(rng.sample(meant, 3))}, {constant})"
    if kind == 2:
        return f"{path} {rng.choice(['', 'NOT '])}BETWEEN {rng.choice(meant)} AND {constant}"
    if kind == 3:
        return f"{rng.choice(TEXT_PATHS)} {rng.choice(['', 'NOT '])}LIKE '{rng.choice(PATTERNS)}'"
    if kind == 4:
        return f"{rng.choice(TEXT_PATHS)} {rng.choice(['BEGINS', 'ENDS'])} WITH ('{rng.choice('ab1')}', '')"
    if kind == 5:
        return rng.choice(["/open", "/id", "/qty", "/to/n", "TRUE", "NULL", "0"])
    if kind == 6:
        one, other = rng.choice([(TEXT_PATHS, TEXT_PATHS), (LONG_PATHS, LONG_PATHS)])
        return f"{rng.choice(one)} {compared} {rng.choice(other)}"
    if kind == 7:
        sums = [f"{rng.choice(LONG_PATHS)} {rng.choice('+-*')} {rng.choice(['/qty', '2', '/id', '-3'])}", "-/id"]
        return f"{rng.choice(sums)} {compared} {rng.choice(NUMBERS_MEANT)}"
    if kind == 8:
        return f"{constant} {compared} {path}"
    return f"{path} {compared} {constant}"
