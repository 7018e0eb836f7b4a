"""One of many topics is ruined, in six ways: the others do not notice, no pod restarts, and the alert is raised."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import yaml

from tests.endtoend import raising
from tests.endtoend.latency import SteadyLoad
from tests.endtoend.ruins import Ruin
from tests.hosting.packages import install
from tests.kubernetes import ruins
from tests.kubernetes.cluster import ROOT
from tests.kubernetes.estate import HERE, KubernetesEstate
from tests.kubernetes.figures import Figures
from tests.kubernetes.pod_watch import container_restarts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.programs.faults.broker.scrape import Sample

CALM: Final = ("calm_a", "calm_b")
WAYS: Final = (
    "bad records",
    "unreadable batch",
    "silent registry",
    "raising plug-in",
    "hanging transaction",
    "grown input",
)
"""The last one cannot be cured: Kafka takes no partition away."""
RULES: Final = ROOT / "deploy" / "prometheus" / "sowstream.rules.yaml"
_PARTITIONS: Final = 4
_RECORDS_PER_S: Final = 40.0
_MEASURED_S: Final = 15.0
_FACTOR_MAX: Final = 2.0
_FLOOR_S: Final = 0.5
"""Below this an increase may stem from other work of the node."""


class RuinedRelease(NamedTuple):
    """The release, as seen from this machine."""

    estate: KubernetesEstate
    bootstrap: str
    file: Path
    """Settings for commands on this machine."""
    ways: dict[str, Ruin]
    load: SteadyLoad
    """Publishes to the topics that must not be disturbed."""

    def wait(self, event: str, look: Callable[[], object]) -> None:
        """Wait for an event."""
        self.estate.wait_until(event, lambda: bool(look()), 180, 1)

    def shown(self, pipeline: str) -> tuple[set[str], list[Sample]]:
        """The reasons for which partitions of a pipeline are held, or `failed`; and all samples that say so."""
        held = [
            (name, labels, value)
            for name, labels, value in self.estate.metrics(ruins.WORKERS)
            if (name == "sowstream_held_partitions" and value)
            or (name == "sowstream_pipeline_state" and labels["state"] == "failed" and value)
        ]
        of_pipeline = [labels for _, labels, _ in held if labels["processor"] == pipeline]
        return {labels.get("reason", "failed") for labels in of_pipeline}, held


@pytest.fixture(scope="module")
def release(estate: KubernetesEstate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuinedRelease]:
    """Two workers that merge all topics."""
    directory = tmp_path_factory.mktemp("ruins")
    ruins.create_plugin(estate.cluster, directory / "plugin")
    ways = ruins.ruins(estate, directory)
    registry = ways["silent registry"].tree["schema_registry"]["url"]
    file = directory / "sowstream.yaml"
    values = yaml.safe_load((HERE / "values" / "ruins.yaml").read_text(encoding="utf-8"))
    config = {name: each for name, each in values["config"].items() if name != "processors"}
    more = ("--set", f"config.schema_registry.url={registry}")
    install(directory / "site", "raising", {"raising": f"{raising.__name__}:Raising"})  # For commands on this machine.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(directory / "site"), prepend=":")
        with estate.release(ruins.RELEASE, *more), estate.local_kafka() as bootstrap:
            local = {"kafka": {"bootstrap.servers": bootstrap}, "state_dir": str(directory)}
            file.write_text(yaml.safe_dump(config | local))
            with SteadyLoad(bootstrap, CALM, _PARTITIONS, _RECORDS_PER_S) as load:
                yield RuinedRelease(estate, bootstrap, file, ways, load)


@pytest.mark.parametrize("way", WAYS)
def test_a_ruined_topic_disturbs_no_other(release: RuinedRelease, figures: Figures, way: str) -> None:
    """The latency of the others stays within twice of what it was, and the ruined topic goes on after its cure."""
    ruin, load = release.ways[way], release.load
    world: Any = release  # Address and settings file are all that a ruin asks of it here.
    ruin.good(world, 1)
    begun_s = time.monotonic()
    release.wait("merging of the others", lambda: load.has_all(begun_s))
    undisturbed_s = time.monotonic()
    time.sleep(_MEASURED_S)  # Measured.
    ruined_s = time.monotonic()
    ruin.ruin(world)
    since_s = time.monotonic()  # Partitions of all topics move in one of the ways: their pauses are those of K8.
    expected = ruin.reasons or {"failed"}
    release.wait(f"showing {expected}", lambda: expected & release.shown(ruin.pipeline)[0])
    shown_s = time.monotonic() - ruined_s
    alerted = alerts_raised(release.shown(ruin.pipeline)[1], ruin.pipeline)
    time.sleep(max(0.0, since_s + _MEASURED_S - time.monotonic()))  # Measured.
    until_s = time.monotonic()
    release.wait("merging of the others meanwhile", lambda: load.has_all(until_s))
    before, during = load.latencies(undisturbed_s, ruined_s), load.latencies(since_s, until_s)
    if ruin.is_curable:
        ruin.cure(world)
        ruin.good(world, 2)
        release.wait("going on after the cure", lambda: not release.shown(ruin.pipeline)[0])
    restarts = sum(map(container_restarts, release.estate.api.pods(ruins.WORKERS)))
    is_calm = all(during[topic].p99_s <= max(_FLOOR_S, _FACTOR_MAX * before[topic].p99_s) for topic in CALM)
    figures.add(
        "K7",
        f"one topic ruined: {way}",
        f"{'; '.join(f'{topic}: {before[topic]}, then {during[topic]}' for topic in CALM)}; shown as "
        f"{'/'.join(sorted(expected))} after {shown_s:.1f} s; alert {alerted}; {restarts} restarts"
        + ("; went on after its cure" if ruin.is_curable else ""),
        "p99 of the others at most twice as long, no restart, the alert of its kind",
        is_met=is_calm and not restarts,
    )
    assert not restarts


def alerts_raised(samples: list[Sample], pipeline: str) -> str:
    """Return the name of the alert that Prometheus raises for a pipeline after minutes with these samples."""
    if shutil.which("promtool") is None:
        return "not looked at, as promtool is missing"
    named = {
        "sowstream_held_partitions": "SowstreamPartitionHeld",
        "sowstream_pipeline_state": "SowstreamPipelineFailed",
    }
    own = [sample for sample in samples if sample[1]["processor"] == pipeline]
    alert = named[own[0][0]]
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    rule = next(each for group in rules["groups"] for each in group["rules"] if each.get("alert") == alert)
    labels = {"processor": pipeline} | {name: own[0][1][name] for name in ("reason",) if name in own[0][1]}
    raised = _is_raised(rule, own, labels)
    assert raised, f"{alert} is not raised by {own}"
    return f"`{alert}`"


def _is_raised(rule: dict[str, Any], samples: list[Sample], labels: dict[str, str]) -> bool:
    """Ask Prometheus' own engine whether the expression of a rule is true for the samples, with these labels."""
    series = [
        {"series": f"{name}{_selector(its | {'instance': f'pod-{number}'})}", "values": f"{value:g}x10"}
        for number, (name, its, value) in enumerate(samples)
    ]
    total = sum(value for _, _, value in samples) if "reason" in labels else 1
    expected = [{"labels": _selector(labels), "value": total}]
    query = {"expr": rule["expr"], "eval_time": "5m", "exp_samples": expected}
    test = {"rule_files": [], "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [query]}]}
    done = subprocess.run(
        ["promtool", "test", "rules", "/dev/stdin"],
        input=yaml.safe_dump(test),
        text=True,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _selector(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
