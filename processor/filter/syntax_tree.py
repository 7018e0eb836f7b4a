"""The tree of a filter: the meaning of its text, typed and immutable, before anything is made of it.

Places in the text do not count when trees are compared: two equivalent texts make equal trees. An index over
equalities, or a translation into another engine's language, starts from here. A digest of a tree's `repr` is kept with
the records of a filtered copy, so that names and fields stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from processor.values.instant import Time

Scalar: TypeAlias = str | int | float | Decimal | bool | Time | None
"""A value that is no array and no object; of a literal never a `Time`."""

Comparison: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]
"""A comparison, each in one spelling."""

Operator: TypeAlias = Literal["+", "-", "*", "/", "%"]
"""An arithmetic operator, each in one spelling."""

JOINED_MARK: Final = "\0"
"""Begins the first part of a path into a joined topic: `[customers]./name` has the parts `\\0customers` and `name`."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that stands in the text."""

    value: Scalar
    """The value; None is NULL."""
    at: int = field(default=0, compare=False, repr=False)
    """Its begin in the text, in characters from 0; of every node."""


@dataclass(frozen=True, slots=True)
class Missing:
    """`MISSING`: the result of an expression of the settings that leaves its field out; no value."""

    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Path:
    """A place in the record."""

    parts: tuple[str | int, ...]
    """From the record down: a text is the name of a member, a number an element of the array that is there, from 0."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Compare:
    """One of `=`, `!=`, `<`, `<=`, `>`, `>=`."""

    operator: Comparison
    """The operator: `==` and `<>` are `=` and `!=`."""
    left: Node
    """The left operand."""
    right: Node
    """The right operand."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Between:
    """`operand BETWEEN low AND high`, both included."""

    operand: Node
    """The operand."""
    low: Node
    """The least value."""
    high: Node
    """The greatest value."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class In:
    """`operand IN (…)`."""

    operand: Node
    """The value to find."""
    choices: tuple[Node, ...]
    """The accepted values, in the text's order."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Like:
    """`operand LIKE 'pattern'`."""

    operand: Node
    """The value that is searched."""
    pattern: str
    """The regular expression."""
    at: int = field(default=0, compare=False, repr=False)
    """The begin of the pattern."""


@dataclass(frozen=True, slots=True)
class BeginsWith:
    """`operand BEGINS WITH (…)`."""

    operand: Node
    """The operand."""
    texts: tuple[str, ...]
    """The accepted valuesgin with."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EndsWith:
    """`operand ENDS WITH (…)`."""

    operand: Node
    """The operand."""
    texts: tuple[str, ...]
    """The accepted ends."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS NULL`."""

    operand: Node
    """The operand."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IsNan:
    """`operand IS NAN`."""

    operand: Node
    """The operand."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT operand`, and the `NOT` inside `NOT IN`, `NOT LIKE`, `IS NOT NULL` and their like."""

    operand: Node
    """The negated operand."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class And:
    """Any number of operands with `AND` between them."""

    operands: tuple[Node, ...]
    """Two or more, in the text's order."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Or:
    """Any number of operands with `OR` between them."""

    operands: tuple[Node, ...]
    """Two or more, in the text's order."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One of `+`, `-`, `*`, `/`, `%`."""

    operator: Operator
    """The operator: `MOD` is `%`."""
    left: Node
    """The left operand."""
    right: Node
    """The right operand."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Negative:
    """A minus sign before a value; before a number it is the number's."""

    operand: Node
    """The value."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class If:
    """`IF(condition, then, otherwise)`."""

    condition: Node
    """The condition."""
    then: Node
    """The value where it is true."""
    otherwise: Node
    """The value where it is false or NULL."""
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments."""

    name: str
    """The function's name, in capitals."""
    arguments: tuple[Node, ...]
    """In the text's order."""
    at: int = field(default=0, compare=False, repr=False)


Node: TypeAlias = (
    Constant
    | Missing
    | Path
    | Compare
    | Between
    | In
    | Like
    | BeginsWith
    | EndsWith
    | IsNull
    | IsNan
    | Not
    | And
    | Or
    | Arithmetic
    | Negative
    | If
    | Call
)
"""Any node of the tree."""

PREDICATES: Final = (Compare, Between, In, Like, BeginsWith, EndsWith, IsNull, IsNan)
"""Nodes that are true or false and never NULL, for all operands."""


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below one."""
    match node:
        case Constant() | Missing() | Path():
            return ()
        case Compare() | Arithmetic():
            return (node.left, node.right)
        case Between():
            return (node.operand, node.low, node.high)
        case In():
            return (node.operand, *node.choices)
        case And() | Or():
            return node.operands
        case If():
            return (node.condition, node.then, node.otherwise)
        case Call():
            return node.arguments
        case _:
            return (node.operand,)
