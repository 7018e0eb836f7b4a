"""`sowstream demo`: all of Sowstream on one machine for a minute, shown while it runs and checked at the end.

In reading order: `run` has the sequence, `settings` the configuration; `feeds` publishes; `processes` runs the workers;
`watcher` subscribes and counts; `picture` and `live_view` show it; `check` compares it with what was sent.
"""

from processor.trial.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo"]
