"""A filter as a boolean Column: what Spark SQL says exactly as we do goes to the JVM, the rest to the processor."""

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
from spark_integration.filter.resolved_path import Source
from spark_integration.filter.spelling import spelled
from spark_integration.filter.translate import Truth, translate


class Split(NamedTuple):
    """Which parts of a filter go where; a record matches if all of them do."""

    pushed: tuple[str, ...]
    """What Spark SQL evaluates, in the JVM."""
    rest: tuple[str, ...]
    """What is left to the processor, in Python, for records that pass the above."""


def filter_column(text: str, schema: StructType | None, *, record: Column | None, value: Column) -> Column:
    """The filter's verdict on each record, true or false, exactly as the workers and the clients have it.

    The operands of an `AND` that can be said exactly in Spark SQL are evaluated there; see `split_filter`. Spark was
    told by the schema what the record's fields are: where a record has something else that Spark does not refuse by
    itself, such as a number in a STRING, and a verdict hangs on it, the query fails.

    Args:
        text: the filter.
        schema: the fields of `record`; without it the processor evaluates all of the filter.
        record: the record as a struct of that schema, which Spark made of `value`, mode FAILFAST.
        value: the record as JSON text; null is a record without fields.

    Raises:
        FilterError: the text is no filter; the message shows the place.
        ConfigurationError: it asks for what is known of a record besides its values.
    """
    pushed, rest = _split(text, schema if record is not None else None)
    verdicts = []
    if pushed:
        verdicts.append(_in_jvm(pushed, Source(F.lit(None) if record is None else record, value)))
    if rest:
        verdicts.append(evaluated(text, _all(rest), value))
    return reduce(and_, verdicts)


def split_filter(text: str, schema: StructType | None) -> Split:
    """Which parts of a filter Spark SQL evaluates, and which the processor.

    Raises:
        FilterError: the text is no filter; the message shows the place.
        ConfigurationError: it asks for what is known of a record besides its values.
    """
    pushed, rest = _split(text, schema)
    return Split(tuple(spelled(node) for node, _ in pushed), tuple(map(spelled, rest)))


def _split(text: str, schema: StructType | None) -> tuple[list[tuple[Node, Truth]], list[Node]]:
    compiled = compile_filter(text)
    if compiled.uses_metadata:
        _refuse_facts(compiled.tree)
    pushed: list[tuple[Node, Truth]] = []
    rest: list[Node] = []
    for node in compiled.tree.operands if isinstance(compiled.tree, And) else (compiled.tree,):
        truth = None if schema is None else translate(node, schema)
        if truth is None:
            rest.append(node)
        else:
            pushed.append((node, truth))
    return pushed, rest


def _in_jvm(pushed: list[tuple[Node, Truth]], source: Source) -> Column:
    def matches(record: Column) -> Column:
        here = source._replace(record=record)
        return reduce(and_, [truth(here) for _, truth in pushed])

    # Spark would make the struct anew for every field that is looked at; so it does once.
    return F.coalesce(F.exists(F.array(source.record), matches), F.lit(False))


def _all(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else And(tuple(nodes))


def _refuse_facts(tree: Node) -> None:
    """A Column sees the record's text, and not the Kafka record around it."""
    function = BUILT_IN.get(tree.name) if isinstance(tree, Call) else None
    # One that moves by itself has the clock to look at.
    if function is not None and function.takes == "facts" and not function.moves_by_itself:
        raise ConfigurationError(
            f"{function.name}() cannot be asked here: a filter in Spark sees the record's values and nothing else; "
            "compare the DataFrame's own columns, such as sow_key and timestamp"
        )
    for child in children(tree):
        _refuse_facts(child)
