"""The goals of the benchmarks, the guard of their figures, and their chart."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.programs.benchmarks import guard
from tests.programs.benchmarks.chart import draw_soak, draw_throughput, throughput_of
from tests.programs.benchmarks.goals import GOALS, PAIRS, Pair, judge, of_rounds, series
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


NAME = "throughput: sowstream / Kafka Streams, records_per_s"
THEN = [2.0, 2.1, 2.2]


def file_of(directory: Path, ours: list[float], *, is_quick: bool = False) -> Path:
    """A file of the suite with these rounds, against 100 records/s of Kafka Streams."""
    rounds = {"sowstream": ours, "Kafka Streams": [100.0] * len(ours)}
    figures = {name: [{"records_per_s": rate} for rate in rates] for name, rates in rounds.items()}
    file = directory / "figures.json"
    entry = {"is_quick": is_quick, "machine": {"cpu": "a", "cores": 2}, "figures": figures}
    file.write_text(json.dumps({"programs": {"throughput": entry}}))
    return file


def run(monkeypatch: Any, *arguments: object) -> None:
    """Run the command."""
    monkeypatch.setattr(sys, "argv", ["guard", *map(str, arguments)])
    guard.main()


def state(then: list[float], now: list[float]) -> str:
    """The state of one ratio."""
    [change] = guard.compare({NAME: then}, {NAME: now})
    return change.state


def test_a_tenth_lost_in_every_round_is_a_regression():
    """A median that lost more than a tenth, with no round as good as the worst accepted one, is a regression."""
    assert state(THEN, [1.7, 1.8, 1.9]) == "regressed"


def test_one_round_as_good_as_before_is_no_clear_regression():
    """One round as good as before is no clear regression: other processes may have disturbed the other rounds."""
    assert state(THEN, [1.0, 1.1, 2.0]) == "steady"


def test_less_than_a_tenth_is_no_clear_regression():
    """A loss of less than a tenth is no clear regression, even if no round reaches the accepted ones."""
    assert state(THEN, [1.95, 1.96, 1.97]) == "steady"


def test_an_improvement_is_reported():
    """An improvement by as much as a regression needs is reported."""
    assert state(THEN, [2.4, 2.5, 2.6]) == "improved"


@pytest.mark.parametrize(("then", "now"), [(THEN, [1.0, 1.0]), ([2.0, 2.1], [1.0, 1.0, 1.0])])
def test_too_few_rounds_on_either_side_decide_nothing(then: list[float], now: list[float]):
    """Too few rounds on either side are no regression, as their spread is unknown."""
    assert state(then, now) == "too few rounds"


def test_a_ratio_on_one_side_only_is_no_regression():
    """A ratio on one side only is reported without a regression: a program was left out or is new."""
    changes = guard.compare({"old": THEN}, {"new": THEN})
    assert [(change.name, change.state) for change in changes] == [("old", "not measured"), ("new", "new")]


def test_missing_accepted_figures_are_no_failure(tmp_path: Path, monkeypatch: Any, capsys: Any):
    """Without accepted figures the guard asks for them to be reviewed, and does not fail."""
    run(monkeypatch, file_of(tmp_path, [200, 210, 220]), "--accepted", tmp_path / "accepted.json")
    assert "nothing is accepted yet" in capsys.readouterr().out


def test_accepted_figures_are_compared_with_later_ones(tmp_path: Path, monkeypatch: Any, capsys: Any):
    """Accepted figures are compared with later ones: the same are steady, and much worse ones fail by name."""
    accepted = tmp_path / "accepted.json"
    run(monkeypatch, file_of(tmp_path, [200, 210, 220]), "--accepted", accepted, "--accept")
    run(monkeypatch, file_of(tmp_path, [200, 210, 220]), "--accepted", accepted)
    with pytest.raises(SystemExit, match="1 of 1 ratios are clearly worse"):
        run(monkeypatch, file_of(tmp_path, [150, 160, 170]), "--accepted", accepted)
    assert f"regressed      {NAME}" in capsys.readouterr().out


def test_accepting_some_ratios_keeps_the_others():
    """Accepting the ratios of some programs keeps those of the others."""
    then = {"machine": {"cpu": "b"}, "ratios": {"old": THEN, NAME: THEN}}
    kept = guard.accept(then, {NAME: [3.0]}, {"throughput": {"machine": {"cpu": "a"}}})
    assert kept == {"machine": {"cpu": "a"}, "ratios": {"old": THEN, NAME: [3.0]}}


def test_small_sizes_are_not_compared(tmp_path: Path, monkeypatch: Any):
    """Figures of small sizes neither regress nor are accepted."""
    with pytest.raises(SystemExit, match="no ratios measured at full size"):
        run(monkeypatch, file_of(tmp_path, [1, 1, 1], is_quick=True), "--accept", "--accepted", tmp_path / "a.json")


FIGURES = {
    "sowstream": [{"records_per_s": 120_000.0}, {"records_per_s": 118_000.0}, {"records_per_s": 125_000.0}],
    "pass-through": [{"records_per_s": 240_000.0}],
    "Kafka Streams": [],
}


def texts(file: Path) -> str:
    """The texts of a chart, in the order of the file."""
    return " | ".join(element.text or "" for element in ET.parse(file).iter("{http://www.w3.org/2000/svg}text"))


def test_the_chart_names_each_program_and_its_median(tmp_path: Path):
    """The chart has the name and median of each program with rounds, and no other program."""
    draw_throughput(FIGURES, tmp_path / "chart.svg")
    chart_texts = texts(tmp_path / "chart.svg")
    assert "pass-through | sowstream" in chart_texts
    assert "120,000" in chart_texts
    assert "Kafka Streams" not in chart_texts


def test_the_same_figures_make_the_same_chart(tmp_path: Path):
    """The same figures give the same chart, so that a new drawing shows no difference."""
    for name in ("one.svg", "other.svg"):
        draw_throughput(FIGURES, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_soak_is_drawn_over_its_time(tmp_path: Path):
    """The chart of a soak has memory and lag over time, one above the other."""
    draw_soak([Sample(60.0 * at, 100.0 + at, 5.0, 1.0) for at in range(5)], tmp_path / "soak.svg")
    assert {"resident memory, MB", "lag, records", "minutes"} <= set(texts(tmp_path / "soak.svg").split(" | "))


@pytest.mark.parametrize("report", [FIGURES, {"programs": {"throughput": {"figures": FIGURES}}}])
def test_both_kinds_of_file_are_read(report: dict[str, Any]):
    """The throughput is read from its own file and from the suite's."""
    assert throughput_of(report) is FIGURES


@pytest.mark.parametrize("report", [{}, {"programs": {}}, {"worker": [{"records_per_s": 1.0}]}])
def test_a_file_without_throughput_is_refused(report: dict[str, Any]):
    """A file without throughput is refused with the command that measures it."""
    with pytest.raises(SystemExit, match=r"tests\.programs\.benchmarks\.throughput"):
        throughput_of(report)
