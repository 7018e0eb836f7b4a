"""Runs the whole pipeline on Spark under kills and audits it: `make program NAME=pipeline ARGS="--kills 3"`."""

from __future__ import annotations

import sys

from processor.errors import ConfigurationError
from spark_integration.session import require_java
from tests.programs.harness import play, read_options
from tests.programs.pipeline.run import Plan, run

_SECONDS_MAX = 600  # The audit holds everything in memory, and compaction begins after ten minutes.


def main() -> int:
    """Run the pipeline and print the table; returns 1 if a promise was broken, 2 for wrong usage."""
    options = read_options("pipeline", __doc__, Plan)
    try:
        require_java()
        if not 0 < options.plan.seconds <= _SECONDS_MAX:
            raise ConfigurationError(f"--seconds {options.plan.seconds:g}: give 1 to {_SECONDS_MAX}")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    return play("pipeline", [options.plan], run, options)


if __name__ == "__main__":
    sys.exit(main())
