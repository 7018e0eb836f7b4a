"""Writes the tree of a filter as text, to show how it was split."""

from __future__ import annotations

from decimal import Decimal

from processor.filter.syntax_tree import (
    And,
    Arithmetic,
    BeginsWith,
    Between,
    Call,
    Compare,
    Constant,
    EndsWith,
    If,
    In,
    IsNan,
    IsNull,
    Like,
    Missing,
    Negative,
    Node,
    Not,
    Or,
    Path,
    Scalar,
)


def spelled(node: Node) -> str:
    """The text of a node, with brackets around every operand that needs them."""
    match node:
        case Constant():
            return _scalar(node.value)
        case Missing():
            return "MISSING"
        case Path():
            return "".join(f"[{part}]" if isinstance(part, int) else f"/{_step(part)}" for part in node.parts)
        case And() | Or():
            return (" AND " if isinstance(node, And) else " OR ").join(map(_operand, node.operands))
        case Not():
            return f"NOT {_operand(node.operand)}"
        case Compare() | Arithmetic():
            return f"{_operand(node.left)} {node.operator} {_operand(node.right)}"
        case Negative():
            return f"-{_operand(node.operand)}"
        case If():
            return f"IF({spelled(node.condition)}, {spelled(node.then)}, {spelled(node.otherwise)})"
        case Call():
            return f"{node.name}({', '.join(map(spelled, node.arguments))})"
        case _:
            return f"{_operand(node.operand)} {_checked(node)}"


def _checked(node: Between | In | Like | BeginsWith | EndsWith | IsNull | IsNan) -> str:
    """The text of a predicate after its operand."""
    match node:
        case Between():
            return f"BETWEEN {_operand(node.low)} AND {_operand(node.high)}"
        case In():
            return f"IN ({', '.join(map(_operand, node.choices))})"
        case Like():
            return f"LIKE {_scalar(node.pattern)}"
        case BeginsWith():
            return f"BEGINS WITH ({', '.join(map(_scalar, node.texts))})"
        case EndsWith():
            return f"ENDS WITH ({', '.join(map(_scalar, node.texts))})"
        case IsNull():
            return "IS NULL"
        case IsNan():
            return "IS NAN"


def _operand(node: Node) -> str:
    text = spelled(node)
    return text if isinstance(node, Constant | Path | Call | If) else f"({text})"


def _step(name: str) -> str:
    return name if name.replace("_", "a").isalnum() and name.isascii() else _scalar(name)


def _scalar(value: Scalar) -> str:
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return str(value) if isinstance(value, int | Decimal) else repr(value)
