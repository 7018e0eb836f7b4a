"""Gaps between an archive and its topic, by the offsets of both; without Kafka and Spark."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")

from spark_integration.merge.moves.archived import refuse_gaps
from spark_integration.merge.topic_family import Bounds


def gaps(
    reached: int | None, oldest: int, end: int, *, wanted: int | None = None, accept_unknown: bool = True
) -> list[dict[str, object]]:
    """Check a topic of one partition; returns the warnings."""
    with capture_logs() as lines:
        refuse_gaps(
            "orders.delta",
            {} if reached is None else {0: reached},
            Bounds({0: oldest}, {0: end}),
            {0: end if wanted is None else wanted},
            accept_unknown=accept_unknown,
        )
    return list(lines)


@pytest.mark.parametrize(
    ("reached", "oldest", "end", "wanted"),
    [
        pytest.param(100, 0, 101, None, id="behind the archive is a marker"),
        pytest.param(100, 100, 120, None, id="the topic begins where the archive ends"),
        pytest.param(100, 100, 100, None, id="retention has emptied the partition"),
        pytest.param(100, 110, 120, 90, id="the records wanted end before the archive"),
        pytest.param(None, 0, 0, None, id="there were no records"),
        pytest.param(None, 0, 20, None, id="all records are in the topic"),
    ],
)
def test_a_history_without_a_gap_is_taken(reached, oldest, end, wanted) -> None:
    """An archive that ends where its topic begins, or later, is complete."""
    assert gaps(reached, oldest, end, wanted=wanted, accept_unknown=False) == []


@pytest.mark.parametrize(
    ("reached", "oldest", "end", "wanted"),
    [
        pytest.param(100, 101, 102, None, id="a partition with records"),
        pytest.param(100, 120, 130, 110, id="a partition with later records only"),
        pytest.param(None, 50, 60, None, id="a partition that the archive lacks"),
    ],
)
def test_a_gap_before_records_of_the_topic_is_refused(reached, oldest, end, wanted) -> None:
    """A gap before records that the topic has is refused: the records between are gone."""
    said = (
        f"the archive ends before offset {reached or 0}, and the topic begins at {oldest}: the records between are gone"
    )
    with pytest.raises(ConfigurationError, match=said):
        gaps(reached, oldest, end, wanted=wanted)


@pytest.mark.parametrize("reached", [100, None])
def test_offsets_before_an_empty_partition_may_have_been_markers(reached) -> None:
    """Markers of transactions look like records that are gone: both are logged, or refused without consent."""
    [line] = gaps(reached, 102, 102)
    assert line["log_level"] == "warning"
    places = {"topic": "orders.delta", "partition": 0, "archive_end": reached or 0, "topic_begin": 102}
    assert places.items() <= line.items()
    with pytest.raises(ConfigurationError, match=r"begins at 102, its end: .* --allow-partial$"):
        gaps(reached, 102, 102, accept_unknown=False)
