"""A filter as a boolean Column."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.filter.functions import BUILT_IN
from processor.filter.node import Call, Node, children
from spark_integration.filter.evaluate import evaluated


def filter_column(text: str, schema: StructType | None, *, record: Column | None, value: Column) -> Column:
    """The filter's verdict on each record, true or false, exactly as the workers and the clients have it.

    Args:
        text: the filter.
        schema: the fields of `record`; None where there are none.
        record: the record as a struct of that schema, which Spark made of `value`.
        value: the record as JSON text; null is a record without fields.

    Raises:
        FilterError: the text is no filter; the message shows the place.
        ConfigurationError: it asks for what is known of a record besides its values.
    """
    del schema, record
    compiled = compile_filter(text)
    if compiled.uses_facts:
        _refuse_facts(compiled.tree)
    return evaluated(text, compiled.tree, value)


def _refuse_facts(tree: Node) -> None:
    """A Column sees the record's text, and not the Kafka record around it."""
    if isinstance(tree, Call) and tree.name in BUILT_IN and BUILT_IN[tree.name].takes == "facts":
        raise ConfigurationError(
            f"{tree.name}() cannot be asked here: a filter in Spark sees the record's values and nothing else; "
            "compare the DataFrame's own columns, such as sow_key and timestamp"
        )
    for child in children(tree):
        _refuse_facts(child)
