"""One consumer process: `python -m tests.programs.queues.consumer CONFIG QUEUE FILE --max-backlog 100`.

It writes `got` and `done` lines, `[event, source, seconds, publication]`, until its standard input ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from processor.client import Client
from processor.config import load


def main() -> None:
    """Handle messages until told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("queue")
    parser.add_argument("file", type=Path)
    parser.add_argument("--max-backlog", type=int, required=True)
    arguments = parser.parse_args()
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    with (
        arguments.file.open("w", encoding="utf-8", buffering=1) as file,
        Client("consumer", load(arguments.config)) as client,
        client.queue(arguments.queue, max_backlog=arguments.max_backlog, timeout_s=1.0) as queue,
    ):
        threading.Thread(target=listen, daemon=True).start()
        print("ready", flush=True)
        while not ended.is_set():
            message = queue.next_within(1.0)
            if message is None:
                continue
            published_s = message.data.get("t", 0.0)
            file.write(json.dumps(["got", message.source, time.monotonic(), time.time() - published_s]) + "\n")
            file.write(json.dumps(["done", message.source, time.monotonic(), 0.0]) + "\n")
            message.ack()


if __name__ == "__main__":
    main()
