"""A password changes under load: workers with the new one take over, and no record is lost."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import pytest

from tests.secured.secured_broker import secret_of

if TYPE_CHECKING:
    from tests.secured.estate import Estate

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

GAP_S = 10.0
KEYS = 50
MERGED_AFTER = 1_000
"""Records that must be merged after a step, before the next one."""


class Feed:
    """Publishes until the end of the `with` block, each record with another number."""

    def __init__(self, estate: Estate) -> None:
        self.count = 0
        self._estate = estate
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.05):
            numbers = range(self.count, self.count + 20)
            self._estate.publish([(b"%d" % (n % KEYS), {"id": n % KEYS, "n": n}, {}) for n in numbers])
            self.count += len(numbers)


def test_a_password_is_rotated_under_load(estate: Estate) -> None:
    """A worker with the old password works until it is replaced; then that one is refused. All records count once."""
    broker = estate.broker
    estate.create_topics()
    estate.grant(estate.printed_acls())
    try:
        estate.start_as("worker", "worker", [estate.name])
        with Feed(estate) as feed:
            _wait_for_more(estate)
            broker.set_passwords({"worker": "the next password"})
            _wait_for_more(estate)
            estate.start_as("worker", "worker", [estate.name], **{"sasl.password": "the next password"})
            old, new = estate.workers
            estate.wait(lambda: "assigned" in new.file.read_text(errors="replace"), "the new worker's first partition")
            assert old.stop() == 0, old.log()
            estate.workers.remove(old)
            _wait_for_more(estate)
        estate.settle()
        refused = estate.run("worker", "doctor", "--role", "worker")
        assert refused.returncode != 0
    finally:
        broker.set_passwords({"worker": secret_of("worker")})
    deltas = estate.read("delta")
    assert len(deltas) == feed.count
    for partition in {delta.partition for delta in deltas}:
        times_ms = sorted(delta.timestamp_ms for delta in deltas if delta.partition == partition)
        assert max(after - before for before, after in pairwise(times_ms)) < GAP_S * 1000


def _wait_for_more(estate: Estate) -> None:
    """Wait until many more records are merged."""
    aim = len(estate.read("delta")) + MERGED_AFTER
    estate.wait(lambda: len(estate.read("delta")) >= aim, f"{MERGED_AFTER} more deltas")
