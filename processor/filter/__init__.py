"""The filter language: a text, compiled once to a function that decides whether a record matches.

Pure: no clock but for UNIX_TIMESTAMP, no input or output, no message type. A record is a parsed value, and is only
looked at. README.md beside this file has the language for those who write filters::

    large = compile_filter("/symbol = 'X' AND /qty > 10")
    large.matches({"symbol": "X", "qty": 11})  # True
"""

from processor.filter.assignment import MISSING, Assignment, PreviousRecord, compile_assignments
from processor.filter.evaluation import RecordMetadata
from processor.filter.filter import Expression, Filter, compile_expression, compile_filter
from processor.filter.parse import compile_work

__all__ = [
    "MISSING",
    "Assignment",
    "Expression",
    "Filter",
    "PreviousRecord",
    "RecordMetadata",
    "compile_assignments",
    "compile_expression",
    "compile_filter",
    "compile_work",
]
