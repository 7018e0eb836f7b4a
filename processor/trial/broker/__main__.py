"""Downloads Apache Kafka ahead of time, so that tests and image builds need not wait for it."""

from __future__ import annotations

import sys

from processor.errors import Stop
from processor.trial.broker.jars import class_path


def main() -> None:
    """Download the jars; exit with a message if that fails."""
    try:
        class_path()
    except Stop as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
