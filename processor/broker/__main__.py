"""Fetches Apache Kafka ahead of time: `python -m processor.broker`, so that tests and image builds need not wait."""

from __future__ import annotations

import sys

from processor.broker.jars import class_path
from processor.errors import Stop

if __name__ == "__main__":
    try:
        class_path()
    except Stop as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
