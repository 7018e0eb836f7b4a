"""The record to which the tables of rules refer."""

from decimal import Decimal

from processor.filter import compile_expression, compile_filter

RECORD = {
    "id": 7,
    "qty": 10,
    "px": 1.5,
    "name": "abc",
    "digits": "10",
    "decimal": Decimal("0.1"),
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": "",
    "none": [],
    "object": {"a": 1, "b c": {"d": 2}},
    "tags": ["x", "y"],
    "numbers": [3, 1, 2],
    "matrix": [[1, 2], [3]],
    "nulls": [None, ""],
    "legs": [{"px": 5, "ccy": "EUR"}, {"px": 6}, {"ccy": "USD"}, {"px": [7, 8]}],
    "@attr": "v",
    "#text": "t",
    "55": "IBM",
    "ns:x": 1,
    "a-b": 2,
    "it's": 3,
    "0": {"id": 4},
}


def matches(text, record=RECORD):
    """Return whether the record above matches."""
    return compile_filter(text).matches(record)


def value(text, record=RECORD):
    """The value of an expression for the record above."""
    return compile_expression(text).value(record)
