"""Fetches Apache Kafka ahead of time: `python -m processor.broker`."""

from processor.trial.broker.__main__ import main

if __name__ == "__main__":
    main()
