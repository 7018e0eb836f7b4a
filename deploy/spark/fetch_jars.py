"""Fetches and checks the jars of a lock: `python deploy/spark/fetch_jars.py LOCK DIRECTORY`."""

import os
import shutil
import sys
from pathlib import Path

from processor.trial.broker.jars import class_path


def main() -> None:
    """Fetch the jars of the command line."""
    lock, directory = map(Path, sys.argv[1:])
    # A Kafka of one's own is not asked for these.
    os.environ.pop("SOWSTREAM_KAFKA_JARS", None)
    for jar in class_path(lock).split(os.pathsep):
        shutil.copy(jar, directory)


if __name__ == "__main__":
    main()
