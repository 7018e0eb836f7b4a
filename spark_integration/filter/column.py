"""Turns a filter into a boolean Column: parts with the same meaning in Spark SQL run in the JVM, the rest in Python.

Python's part runs on the executors, with the processor's own decoder and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.filter.functions import BUILT_IN
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
    children,
)
from spark_integration.filter.resolved_path import RowColumns
from spark_integration.filter.translate import Truth, translate

if TYPE_CHECKING:
    import pandas as pd


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


def evaluated(text: str, tree: Node, value: Column) -> Column:
    """Evaluate a filter on JSON text, to true or false; a null text counts as a record without fields.

    Args:
        text: the text of the filter, for error messages.
        tree: the filter to evaluate, or a part of it.
        value: the records as JSON text.
    """
    verdicts: Callable[[Column], Column] = pandas_udf(_verdicts(text, tree), "boolean")  # type: ignore[call-overload]
    return verdicts(value)


def _verdicts(text: str, tree: Node) -> Callable[[Iterator[pd.Series]], Iterator[pd.Series]]:
    import pandas as pd  # noqa: PLC0415 - slow, and a driver needs it only for such a filter

    def of_batches(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        # Imported here, as this runs on executors: a compiled filter cannot be pickled, so each task compiles it once.
        from processor.codec.json import JsonCodec  # noqa: PLC0415
        from processor.filter.compile import Compiler  # noqa: PLC0415
        from processor.filter.evaluation import NO_METADATA  # noqa: PLC0415

        decode, truth = JsonCodec().decode, Compiler(text).condition(tree)
        for batch in batches:
            records = (decode(record.encode()) if isinstance(record, str) else {} for record in batch)
            yield pd.Series([truth(record, NO_METADATA) is True for record in records], dtype=bool)

    # PySpark reads the kind of function from its types, which are texts in this file.
    of_batches.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}
    return of_batches


class Split(NamedTuple):
    """The parts of a filter by the place of their evaluation; a record matches if all parts match."""

    pushed: tuple[str, ...]
    """Parts that Spark SQL evaluates, in the JVM."""
    rest: tuple[str, ...]
    """Parts that the processor evaluates, in Python, for records that pass those above."""


def filter_column(text: str, schema: StructType | None, *, record: Column | None, value: Column) -> Column:
    """Evaluate a filter on each record, to true or false, exactly as the workers and the clients do.

    The operands of an `AND` that have an exact equivalent in Spark SQL are evaluated there; see `split_filter`. The
    query fails where the result depends on a value of another type than its column that Spark accepts, such as a number
    in a STRING column.

    Args:
        text: the filter.
        schema: the fields of `record`; without it the processor evaluates the complete filter.
        record: the record as a struct of that schema, which Spark made of `value`; a misfit fails the query.
        value: the record as JSON text; null is a record without fields.

    Raises:
        FilterError: the text is no filter; the message shows the place.
        ConfigurationError: it uses metadata of a record, and not only its values.
    """
    pushed, rest = _split(text, schema if record is not None else None)
    verdicts = []
    if pushed:
        verdicts.append(_in_jvm(pushed, RowColumns(F.lit(None) if record is None else record, value)))
    if rest:
        verdicts.append(evaluated(text, _all(rest), value))
    return reduce(and_, verdicts)


def split_filter(text: str, schema: StructType | None) -> Split:
    """Split a filter into the parts for Spark SQL and the parts for the processor.

    Raises:
        FilterError: the text is no filter; the message shows the place.
        ConfigurationError: it uses metadata of a record, and not only its values.
    """
    pushed, rest = _split(text, schema)
    return Split(tuple(spelled(node) for node, _ in pushed), tuple(map(spelled, rest)))


def _split(text: str, schema: StructType | None) -> tuple[list[tuple[Node, Truth]], list[Node]]:
    compiled = compile_filter(text)
    if compiled.uses_metadata:
        _refuse_metadata(compiled.tree)
    pushed: list[tuple[Node, Truth]] = []
    rest: list[Node] = []
    for node in compiled.tree.operands if isinstance(compiled.tree, And) else (compiled.tree,):
        truth = None if schema is None else translate(node, schema)
        if truth is None:
            rest.append(node)
        else:
            pushed.append((node, truth))
    return pushed, rest


def _in_jvm(pushed: list[tuple[Node, Truth]], source: RowColumns) -> Column:
    def matches(record: Column) -> Column:
        here = source._replace(record=record)
        return reduce(and_, [truth(here) for _, truth in pushed])

    # Spark would parse the struct again for every field of the filter; in an array it parses once.
    return F.coalesce(F.exists(F.array(source.record), matches), F.lit(False))


def _all(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else And(tuple(nodes))


def _refuse_metadata(tree: Node) -> None:
    """Reject functions of the Kafka record: a Column has the record's text only."""
    function = BUILT_IN.get(tree.name) if isinstance(tree, Call) else None
    # A function that moves by itself only needs the clock.
    if function is not None and function.takes == "metadata" and not function.moves_by_itself:
        raise ConfigurationError(
            f"{function.name}() cannot be asked here: a filter in Spark sees the record's values and nothing else; "
            "compare the DataFrame's own columns, such as sow_key and timestamp"
        )
    for child in children(tree):
        _refuse_metadata(child)
