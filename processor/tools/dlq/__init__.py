"""Dead letters: rejected input records, shown to people, and sent back to their input topic.

`shown` prints dead letters; `waiting` reads those that wait; `survey` selects and counts them; `replay` sends them
back, exactly once, with `full_records` for truncated ones.
"""

from processor.tools.dlq.replay import DeadLetterReplay, replayable
from processor.tools.dlq.shown import COLUMNS, as_json, as_row
from processor.tools.dlq.survey import LetterSelection, Survey, survey
from processor.tools.dlq.waiting import WaitingLetters
from processor.wire.dead_letter import DeadLetter, input_record, read_letter

__all__ = [
    "COLUMNS",
    "DeadLetter",
    "DeadLetterReplay",
    "LetterSelection",
    "Survey",
    "WaitingLetters",
    "as_json",
    "as_row",
    "input_record",
    "read_letter",
    "replayable",
    "survey",
]
