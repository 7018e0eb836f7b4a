"""The grammar, and the tree that is built of a text while it is parsed."""

from __future__ import annotations

from functools import cache
from typing import Final, cast

from lark import Lark, Token, Transformer, v_args

from processor.filter.syntax_tree import (
    JOINED_MARK,
    And,
    Arithmetic,
    BeginsWith,
    Between,
    Call,
    Compare,
    Comparison,
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
    Operator,
    Or,
    Path,
)
from processor.filter.value import (
    CONSTANTS,
    PATH,
    TEXT,
    Number,
    literal_number,
    negated,
    read_constants,
    read_path,
    read_text,
)
from processor.values.key_text import NUMBER

GRAMMAR: Final = rf"""
    start: either
    ?either: both | both (_OR both)+ -> either_of
    ?both: not_ | not_ (_AND not_)+ -> both_of
    ?not_: NOT not_ -> negated | predicate
    ?predicate: sum
        | sum COMPARISON sum                                       -> compare
        | sum [NOT] _BETWEEN sum _AND sum                          -> between
        | sum [NOT] _IN _OPEN sum (_COMMA sum)* _CLOSE             -> is_in
        | sum [NOT] _IN CONSTANTS                                  -> is_in_list
        | sum [NOT] _LIKE text                                     -> like
        | sum [NOT] _BEGINS _WITH _OPEN text (_COMMA text)* _CLOSE -> begins_with
        | sum [NOT] _BEGINS _WITH CONSTANTS                        -> begins_with_list
        | sum [NOT] _ENDS _WITH CONSTANTS                          -> ends_with_list
        | sum [NOT] _ENDS _WITH _OPEN text (_COMMA text)* _CLOSE   -> ends_with
        | sum _IS [NOT] NULL                                       -> is_null
        | sum _IS [NOT] NAN                                        -> is_nan
    ?sum: term | sum (PLUS | MINUS) term -> arithmetic
    ?term: factor | term (STAR | SLASH | PERCENT) factor -> arithmetic
    ?factor: _OPEN either _CLOSE
        | NUMBER -> number
        | text -> constant
        | NULL -> null
        | TRUE -> true
        | FALSE -> false
        | MISSING -> missing
        | PATH -> path
        | JOINED PATH -> joined_path
        | NAME _OPEN STAR _CLOSE -> call_all
        | NAME CONSTANTS -> call_list
        | NAME _OPEN [either (_COMMA either)*] _CLOSE -> call
        | MINUS factor -> negative
    text: TEXT

    _OR.3: /or\b/i
    _AND.3: /and\b/i
    NOT.3: /not\b/i
    _BETWEEN.3: /between\b/i
    _IN.3: /in\b/i
    _LIKE.3: /like\b/i
    _BEGINS.3: /begins\b/i
    _ENDS.3: /ends\b/i
    _WITH.3: /with\b/i
    _IS.3: /is\b/i
    NULL.3: /null\b/i
    NAN.3: /nan\b/i
    TRUE.3: /true\b/i
    FALSE.3: /false\b/i
    MISSING.3: /missing\b/i
    COMPARISON: "==" | "=" | "!=" | "<>" | "<=" | "<" | ">=" | ">"
    PLUS: "+"
    MINUS: "-"
    STAR: "*"
    SLASH: "/"
    PERCENT.3: /%|mod\b/i
    _OPEN: "("
    _CLOSE: ")"
    _COMMA: ","
    CONSTANTS.4: /{CONSTANTS}/s
    NUMBER: /{NUMBER}/
    TEXT.2: /{TEXT}/s
    PATH.2: /{PATH.replace("/", chr(92) + "/")}/s
    JOINED.2: /\[[A-Za-z0-9_-]+\]\./
    NAME.1: /[A-Za-z_]\w*/
    %ignore /\s+/
"""


class NotAText(Exception):
    """A number in a list of texts, at a place."""


_SPELLINGS: Final = {"==": "=", "<>": "!="}


@v_args(inline=True)
class _Tree(Transformer[Token, Node]):
    """The node that each rule of the grammar makes."""

    def start(self, node: Node) -> Node:
        return node

    def either_of(self, *operands: Node) -> Node:
        return Or(_flat(Or, operands), operands[0].at)

    def both_of(self, *operands: Node) -> Node:
        return And(_flat(And, operands), operands[0].at)

    def negated(self, token: Token, operand: Node) -> Node:
        return Not(operand, _at(token))

    def compare(self, left: Node, token: Token, right: Node) -> Node:
        operator = cast("Comparison", _SPELLINGS.get(token, str(token)))
        return Compare(operator, left, right, left.at)

    def between(self, operand: Node, negation: Token | None, low: Node, high: Node) -> Node:
        return _perhaps_not(negation, Between(operand, low, high, operand.at))

    def is_in(self, operand: Node, negation: Token | None, *choices: Node) -> Node:
        return _perhaps_not(negation, In(operand, choices, operand.at))

    def is_in_list(self, operand: Node, negation: Token | None, choices: Token) -> Node:
        return _perhaps_not(negation, In(operand, _constants(choices), operand.at))

    def begins_with_list(self, operand: Node, negation: Token | None, texts: Token) -> Node:
        return _perhaps_not(negation, BeginsWith(operand, _texts(texts), operand.at))

    def ends_with_list(self, operand: Node, negation: Token | None, texts: Token) -> Node:
        return _perhaps_not(negation, EndsWith(operand, _texts(texts), operand.at))

    def call_list(self, token: Token, arguments: Token) -> Node:
        return Call(token.upper(), _constants(arguments), _at(token))

    def like(self, operand: Node, negation: Token | None, pattern: Token) -> Node:
        return _perhaps_not(negation, Like(operand, read_text(pattern), _at(pattern)))

    def begins_with(self, operand: Node, negation: Token | None, *texts: Token) -> Node:
        return _perhaps_not(negation, BeginsWith(operand, tuple(map(read_text, texts)), operand.at))

    def ends_with(self, operand: Node, negation: Token | None, *texts: Token) -> Node:
        return _perhaps_not(negation, EndsWith(operand, tuple(map(read_text, texts)), operand.at))

    def is_null(self, operand: Node, negation: Token | None, _null: Token) -> Node:
        return _perhaps_not(negation, IsNull(operand, operand.at))

    def is_nan(self, operand: Node, negation: Token | None, _nan: Token) -> Node:
        return _perhaps_not(negation, IsNan(operand, operand.at))

    def arithmetic(self, left: Node, token: Token, right: Node) -> Node:
        operator = cast("Operator", "%" if token.type == "PERCENT" else str(token))
        return Arithmetic(operator, left, right, left.at)

    def negative(self, token: Token, operand: Node) -> Node:
        if isinstance(operand, Constant) and isinstance(operand.value, Number) and operand.value is not True:
            return Constant(negated(operand.value), _at(token))
        return Negative(operand, _at(token))

    def number(self, token: Token) -> Node:
        return Constant(literal_number(token), _at(token))

    def constant(self, token: Token) -> Node:
        return Constant(read_text(token), _at(token))

    def null(self, token: Token) -> Node:
        return Constant(None, _at(token))

    def true(self, token: Token) -> Node:
        return Constant(value=True, at=_at(token))

    def false(self, token: Token) -> Node:
        return Constant(value=False, at=_at(token))

    def missing(self, token: Token) -> Node:
        return Missing(_at(token))

    def path(self, token: Token) -> Node:
        return Path(read_path(token), _at(token))

    def joined_path(self, topic: Token, path: Token) -> Node:
        return Path((JOINED_MARK + str(topic)[1:-2], *read_path(path)), _at(topic))

    def call_all(self, token: Token, _star: Token) -> Node:
        return Call(f"{token.upper()}(*)", (), _at(token))

    def call(self, token: Token, *arguments: Node | None) -> Node:
        given = tuple(argument for argument in arguments if argument is not None)
        if token.upper() == "IF" and len(given) == 3:
            return If(*given, at=_at(token))
        return Call(token.upper(), given, _at(token))

    def text(self, token: Token) -> Token:
        return token


def _at(token: Token) -> int:
    return token.start_pos or 0


def _constants(token: Token) -> tuple[Constant, ...]:
    """The nodes of a list of constants."""
    begin = _at(token)
    return tuple([Constant(value, begin + at) for value, at in read_constants(token)])


def _texts(token: Token) -> tuple[str, ...]:
    """The texts of a list; a number among them is no text."""
    constants = read_constants(token)
    for value, at in constants:
        if not isinstance(value, str):
            raise NotAText(_at(token) + at)
    return tuple([str(value) for value, _ in constants])


def _flat(kind: type[And | Or], operands: tuple[Node, ...]) -> tuple[Node, ...]:
    """`(a AND b) AND c` is one AND of three."""
    flat: list[Node] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, kind) else (operand,))
    return tuple(flat)


def _perhaps_not(negation: Token | None, node: Node) -> Node:
    return node if negation is None else Not(node, node.at)


@cache
def parser() -> Lark:
    """The parser, made when a process first needs it: its tables take some tens of milliseconds."""
    return Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=_Tree(), maybe_placeholders=True)
