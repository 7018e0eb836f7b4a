"""The filter rules in a naive form: a tree is walked for every record, with fractions, and no speed."""

import re
from decimal import Decimal
from fractions import Fraction

from processor.filter.syntax_tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Constant,
    If,
    In,
    IsNan,
    IsNull,
    Like,
    Not,
    Or,
    Path,
)

NAN = object()


def evaluate(node, record):
    """The value of a node: True, False, None for NULL, or another value."""
    match node:
        case Constant():
            return node.value
        case Path():
            return at(record, node.parts)
        case And():
            truths = [truth(evaluate(operand, record)) for operand in node.operands]
            return False if False in truths else (None if None in truths else True)
        case Or():
            truths = [truth(evaluate(operand, record)) for operand in node.operands]
            return True if True in truths else (None if None in truths else False)
        case Not():
            argument = truth(evaluate(node.operand, record))
            return None if argument is None else not argument
        case If():
            return evaluate(node.then if truth(evaluate(node.condition, record)) else node.otherwise, record)
        case Compare():
            left, right = (values(evaluate(side, record)) for side in (node.left, node.right))
            return any(holds(node.operator, one, other) for one in left for other in right)
        case Between():
            argument, low, high = (values(evaluate(part, record)) for part in (node.operand, node.low, node.high))
            return any(
                holds("<=", least, one) and holds("<=", one, most) for one in argument for least in low for most in high
            )
        case In():
            argument = values(evaluate(node.operand, record))
            choices = [element for choice in node.choices for element in values(evaluate(choice, record))]
            return any(holds("=", one, other) for one in argument for other in choices)
        case Like():
            return any(
                re.search(node.pattern, written(one)) is not None for one in values(evaluate(node.operand, record))
            )
        case IsNull():
            return values(evaluate(node.operand, record)) == []
        case IsNan():
            return any(one is NAN for one in values(evaluate(node.operand, record)))
        case Arithmetic():
            return computed(node.operator, *(first(evaluate(side, record)) for side in (node.left, node.right)))
    raise AssertionError(node)


def at(value, parts):
    """The value at a path."""
    for part in parts:
        if isinstance(part, int):
            value = (
                (value[part] if part < len(value) else None)
                if isinstance(value, list)
                else value
                if part == 0
                else None
            )
        elif isinstance(value, list):
            members = [element[part] for element in flat(value) if isinstance(element, dict) and part in element]
            value = [element for member in members for element in (member if isinstance(member, list) else [member])]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def flat(value):
    """The elements of an array and of the arrays in it."""
    return [inner for element in value for inner in (flat(element) if isinstance(element, list) else [element])]


def values(value):
    """Every element of a value that is not NULL."""
    return [
        element for element in flat([value]) if element is not None and element != "" and not isinstance(element, dict)
    ]


def first(value):
    """Element 0 of a value; None for NULL."""
    while isinstance(value, list):
        value = value[0] if value else None
    return None if value == "" or isinstance(value, dict) else value


def fraction(value):
    """The exact number that a value represents; None if it is no number."""
    if isinstance(value, str):
        return (
            Fraction(value)
            if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", value, re.ASCII | re.IGNORECASE)
            else None
        )
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def holds(operator, one, other):
    """Return whether a comparison of two values holds that are not NULL."""
    if one is NAN or other is NAN:
        return operator == "!="
    if not (isinstance(one, str) and isinstance(other, str)):
        one, other = ((fraction(value) is None, fraction(value) or 0) for value in (one, other))
    results = {"=": one == other, "!=": one != other, "<": one < other, ">": one > other}
    return results[operator] if operator in results else results[operator[0]] or results["="]


def truth(value):
    """The truth of a value in three-valued logic."""
    truths = [truth_of(element) for element in values(value)]
    return True if True in truths else False if False in truths else None


def truth_of(value):
    """The truth of an element in three-valued logic."""
    if value is NAN:
        return None
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    number = fraction(value)
    return None if number is None else number != 0


def written(value):
    """A value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return "nan" if value is NAN else str(value)


def computed(operator, one, other):
    """The result of arithmetic on integers and on values that count as integers."""
    if one is None or other is None:
        return None
    if NAN in (one, other) or fraction(one) is None or fraction(other) is None:
        return NAN
    one, other = fraction(one), fraction(other)
    if operator in "/%" and other == 0:
        return NAN
    if operator == "/":
        return int(one / other)
    if operator == "%":
        return int(one - other * int(one / other))
    return int({"+": one + other, "-": one - other, "*": one * other}[operator])


NUMBERS = [0, 1, 2, -1, 10, 0.0, 1.0, 0.1, -0.5, 1e20, Decimal("0.1"), Decimal("1.00"), Decimal(2**70), 2**53 + 1]
"""Numbers for comparisons: equal values of several types, and values that a float cannot hold."""
