"""`sowstream demo`: the whole product on one machine for a minute, watched while it runs and checked at the end.

In reading order: `run` says what happens when, `settings` what is configured, `orders` and `prices` what is published,
`feed` how fast, `processes` who works, `watcher` what a subscriber sees of it, `picture` and `view` how that is shown,
`drain` when everything has arrived, `check`, `judge` and `audit` whether it is right, `report` what is said at the end.
"""

from processor.tools.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "run_demo"]
