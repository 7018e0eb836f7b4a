"""`sowstream up`: an installation on one machine, in one terminal: a broker, topics, workers and a gateway.

`run` has the sequence and its end, `readiness` finds in the worker's log which topics are ready, and `report` shows it:
a line for each topic on a terminal, the JSON lines of all programs elsewhere.
"""

from processor.trial.up.run import UpOptions, run_up

__all__ = ["UpOptions", "run_up"]
