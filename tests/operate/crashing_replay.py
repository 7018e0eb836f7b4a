"""`sowstream` with a crash at a chosen point, as `tests.endtoend.crashing_worker`, Ctrl-C included."""

from __future__ import annotations

import os
import signal
import sys

from processor.cli.main import main
from processor.kafka.clients.transactional_producer import TransactionalProducer
from tests.endtoend.crashing_worker import POINTS, arm


def interrupt() -> None:
    """Simulate Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    POINTS["Ctrl-C"] = (TransactionalProducer, "commit", "before", interrupt)
    arm(sys.argv[1], int(sys.argv[2]))
    del sys.argv[1:3]
    main()
