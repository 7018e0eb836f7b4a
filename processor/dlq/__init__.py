"""Dead letters: rejected input records, shown to people, and sent back to where they came from.

`letter` tells what a dead letter is and what input record it was; `choice` which ones are meant; `shown` how they look;
`waiting` reads those that wait, `survey` counts them, `replay` sends them back, exactly once.
"""

from processor.dlq.choice import Choice
from processor.dlq.letter import DeadLetter, input_record, read_letter
from processor.dlq.replay import Replay, replayable
from processor.dlq.shown import COLUMNS, as_json, as_row
from processor.dlq.survey import Survey, survey
from processor.dlq.waiting import Waiting, group_of

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
