"""`sowstream demo`: all of Sowstream on one machine for a minute, shown while it runs and checked at the end.

In reading order: `run` has the sequence, `settings` the configuration; `feeds/` publishes; `processes` runs the
workers; `watcher` subscribes and counts; `display/` shows it; `drain` waits for the end; `audit` reads the topics for
`check`.
"""

from processor.tools.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo"]
