"""Dead letters: rejected input records, shown to people, and sent back to where they came from.

`letter` tells what a dead letter is and what input record it was; `choice` which ones are meant; `shown` how they look;
`waiting` reads those that wait, `survey` counts them, `replay` sends them back, exactly once.
"""

from processor.tools.dlq.choice import Choice
from processor.tools.dlq.replay import Replay, replayable
from processor.tools.dlq.shown import COLUMNS, as_json, as_row
from processor.tools.dlq.survey import Survey, survey
from processor.tools.dlq.waiting import Waiting, group_of
from processor.wire.dead_letter import DeadLetter, input_record, read_letter

__all__ = [
    "COLUMNS",
    "Choice",
    "DeadLetter",
    "Replay",
    "Survey",
    "Waiting",
    "as_json",
    "as_row",
    "group_of",
    "input_record",
    "read_letter",
    "replayable",
    "survey",
]
