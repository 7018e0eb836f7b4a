"""A crew notices each of its workers that ends in an unexpected way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.endtoend.world import Worker
from tests.programs.faults.broker.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.endtoend.world import World


class _Place(SimpleNamespace):
    """A world without a broker, whose workers end at once with exit code 1 and no message for people."""

    def start(self, *, env: Mapping[str, str] | None = None) -> Worker:
        worker = Worker(cast("World", self), "worker", [], ["tests.programs.faults.no_such_module"], env or {})
        self.workers.append(worker)
        return worker


def test_a_worker_that_ends_after_the_last_check_is_reported(tmp_path: Path) -> None:
    """A crew reports a worker that ends between the supervisor's last check and the end of the block."""
    place: Any = _Place(directory=tmp_path, workers=[], file=tmp_path / "none")
    crew = Crew(place)
    crew._over.set()  # The supervisor no longer checks.
    with pytest.raises(AssertionError, match="exit code 1"), crew:
        place.workers[0].process.wait()
