"""Topics with records that the workers' own merge has made of commands."""

from __future__ import annotations

import json

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver


class Merged:
    """Merges commands as a worker does, and writes the results to the topics."""

    def __init__(self, family, **settings) -> None:
        self._family = family
        self.driver = ProcessorTestDriver(DeltaMerge, TopicConfig(**settings), name="orders")
        self._sent = {"sow": 0, "delta": 0}

    def merge(self, *commands) -> None:
        """Merge commands, each a body or a body with headers, and write the results."""
        for command in commands:
            body, headers = command if isinstance(command, tuple) else (command, {})
            self.driver.pipe_input(str(body["id"]), body, [(name, text.encode()) for name, text in headers.items()])
        self.driver.commit()
        for role, begin in self._sent.items():
            output = self.driver.read_output(role)
            with self._family.transaction(role) as write:
                for record in output[begin:]:
                    headers = {name: value.decode() for name, value in record.headers or ()}
                    write(record.key.decode(), record.value and record.value.decode(), **headers)
            self._sent[role] = len(output)

    def latest(self) -> dict:
        """The last record of each key, with the number of updates since its life began; None is a delete."""
        latest, begins = {}, {}
        for record in self.driver.read_output("sow"):
            headers = dict(record.headers)
            version = int(headers["version"])
            if headers.get("kind") == b"insert":
                begins[record.key] = version
            latest[record.key] = record.value and json.loads(record.value), version - begins[record.key]
        return latest
