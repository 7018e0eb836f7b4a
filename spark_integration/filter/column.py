"""Turns a filter into a boolean Column: parts with the same meaning in Spark SQL run in the JVM, the rest in Python."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.filter.functions import BUILT_IN
from processor.filter.syntax_tree import And, Call, Node, children
from spark_integration.filter.evaluate import evaluated
from spark_integration.filter.resolved_path import RowColumns
from spark_integration.filter.spelling import spelled
from spark_integration.filter.translate import Truth, translate


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
