from typing import Any

import pytest

from tests.programs.benchmarks.goals import GOALS, judge
from tests.programs.benchmarks.ratios import PAIRS, Pair, of_rounds, series
from tests.programs.benchmarks.soak_figures import Sample, quarters, summary


def rounds(field: str, *values: float) -> list[dict[str, float]]:
    """Rounds of one figure."""
    return [{field: value} for value in values]


def throughput(**rates: float) -> dict[str, Any]:
    """The suite's file with one round of the throughput."""
    named = {name.replace("_", " ").replace("pass through", "pass-through"): rate for name, rate in rates.items()}
    return {"throughput": {"figures": {name: rounds("records_per_s", rate) for name, rate in named.items()}}}


def growth(field: str, **values: float) -> dict[str, Any]:
    """The suite's file with one round of growth: `keys_10000=…`."""
    return {"growth": {"figures": {name.replace("_", " "): rounds(field, value) for name, value in values.items()}}}


def verdict_of(programs: dict[str, Any], goal: str) -> tuple[str, str]:
    """The verdict on a goal."""
    [verdict] = [verdict for verdict in judge(programs) if verdict.goal == goal]
    return verdict.state, verdict.figure


def test_nothing_measured_is_neither_reached_nor_missed():
    """Without figures, every goal is listed as not measured, with its limit."""
    verdicts = judge({})
    assert {verdict.state for verdict in verdicts} == {"not measured"}
    assert len(verdicts) == len(GOALS) + 1


def test_a_limit_from_below_is_reached_at_it_and_missed_under_it():
    """A lower limit is reached at exactly its value: twice as fast as Kafka Streams."""
    goal = "throughput beside Kafka Streams"
    assert verdict_of(throughput(sowstream=200, Kafka_Streams=100), goal) == ("reached", "2.00 x; at least 2 x")
    assert verdict_of(throughput(sowstream=199, Kafka_Streams=100), goal) == ("missed", "1.99 x; at least 2 x")


def test_a_limit_from_above_is_reached_at_it_and_missed_over_it():
    """An upper limit is reached at exactly its value: a median of 50 ms."""
    goal = "exactly once, 1,000 records/s, p50"
    for value, state in ((50, "reached"), (50.1, "missed")):
        programs = {"latency": {"figures": {"exactly_once": rounds("p50_ms", 9, value, 99)}}}
        assert verdict_of(programs, goal)[0] == state


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    """A ratio is the median over the rounds: a disturbance of both sides of a round cancels out."""
    figures = {"sowstream": rounds("records_per_s", 10, 100, 300), "Kafka Streams": rounds("records_per_s", 5, 40, 100)}
    programs = {"throughput": {"figures": figures}}
    assert of_rounds(programs, Pair("throughput", "sowstream", "Kafka Streams")) == [2, 2.5, 3]
    assert verdict_of(programs, "throughput beside Kafka Streams")[1].startswith("2.50 x")


def test_a_rival_that_was_left_out_leaves_its_goal_open():
    """The goal of a rival that could not be installed is not measured, and the other goals are judged."""
    programs = throughput(sowstream=200, pass_through=400)
    assert verdict_of(programs, "throughput beside Quix Streams")[0] == "not measured"
    assert verdict_of(programs, "throughput beside the ceiling")[0] == "reached"


def test_a_rival_without_rounds_is_one_that_was_left_out():
    """A rival with an empty list of rounds is a rival that was left out."""
    assert series({"restore": {"figures": {"Kafka Streams": []}}}, "restore", "Kafka Streams", "seconds") == []


def test_the_growth_of_keys_is_judged_at_ten_million_only():
    """The goal for ten million keys is not measured by a million keys."""
    goal = "a record's cost, 10,000 keys to 10,000,000"
    assert verdict_of(growth("records_per_s", keys_10000=100, keys_1000000=99), goal)[0] == "not measured"
    assert verdict_of(growth("records_per_s", keys_10000=100, keys_10000000=50), goal)[0] == "reached"
    assert verdict_of(growth("records_per_s", keys_10000=100, keys_10000000=49), goal)[0] == "missed"


def test_the_growth_of_sizes_is_the_worst_step():
    """The growth of sizes is judged by its worst step: cost that grew twentyfold at tenfold size misses the goal."""
    goal = "the cost's growth from 70 B to 10 KB beside the size's"
    assert verdict_of(growth("records_per_s", sizes_70=200, sizes_1000=100, sizes_10000=5), goal)[0] == "missed"
    assert verdict_of(growth("records_per_s", sizes_70=200, sizes_1000=100, sizes_10000=20), goal)[0] == "reached"


def test_partitions_may_cost_fifteen_percent():
    """A record at 64 partitions may cost fifteen percent more than at one."""
    goal = "a record's cost, 1 partition to 64"
    assert verdict_of(growth("records_per_s", partitions_1=114, partitions_64=100), goal)[0] == "reached"
    assert verdict_of(growth("records_per_s", partitions_1=117, partitions_64=100), goal)[0] == "missed"


def test_memory_is_stated_when_all_three_are():
    """Memory is stated if the growth for each key, partition and record of a batch was measured."""
    measured = {"keys_10000": 100, "keys_1000000": 199, "partitions_1": 100, "partitions_64": 163}
    goal = "memory is stated per key, partition and batch"
    assert verdict_of(growth("resident_mb", **measured), goal)[0] == "not measured"
    state, figure = verdict_of(growth("resident_mb", **measured, batches_500=100, batches_50000=149.5), goal)
    assert (state, figure) == ("reached", "100.00 bytes a key, 1.00 MB a partition, 1,000.00 bytes a record of a batch")


def test_a_short_soak_decides_nothing():
    """A short soak gives no verdict: memory that grows slowly looks flat within minutes."""
    goal = "memory after half an hour at 70 %"
    for minutes, state in ((1, "not measured"), (30, "reached")):
        figures = {"soak": [{"minutes": minutes, "memory_growth": 1.05, "lag_s_last": 0.1}]}
        assert verdict_of({"soak": {"figures": figures}}, goal)[0] == state


def test_a_soak_compares_the_last_quarter_with_the_second():
    """A soak is judged by its last quarter against the second, as caches fill in the first."""
    memory = [10, 20, 100, 100, 100, 100, 120, 120]
    samples = [Sample(float(at), float(mb), 7.0 * at, 50.0 * at) for at, mb in enumerate(memory, 1)]
    row = summary(samples, rate=70.0, peak=100.0)
    assert quarters(samples, "resident_mb") == [15, 100, 100, 120]
    assert (row["memory_growth"], row["taken_per_s"], row["lag_s_last"]) == (1.2, 50, 0.75)


def test_a_soak_of_too_few_samples_is_an_error():
    """A soak with fewer samples than quarters is an error."""
    with pytest.raises(ValueError, match="too few"):
        quarters([Sample(1, 1, 1, 1)] * 3, "resident_mb")


def test_no_ratio_is_guarded_twice():
    """Each ratio of the guard has a name of its own in the accepted file."""
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
