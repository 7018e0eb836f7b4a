"""Wrong settings are refused with a message, and no password shows."""

from __future__ import annotations

import json
import time

import pytest

from tests.kubernetes.estate import PODS, RELEASE, KubernetesEstate
from tests.kubernetes.figures import Figures

OTHER = "app.kubernetes.io/instance=other"
OTHERS_POD = "desk-sowstream-worker-0"


def test_a_password_in_the_settings_is_refused(estate: KubernetesEstate, figures: Figures) -> None:
    """Helm refuses a password among the settings, before anything of the release exists."""
    with pytest.raises(RuntimeError, match=r"config\.kafka") as error:
        estate.cluster.upgrade("other", *estate.images, "--set", r"config.kafka.sasl\.password=hunter2")
    assert "hunter2" not in str(error.value).split(": ", 1)[1]
    figures.add("K9", "a password in `config.kafka`", "refused by Helm, with the name of the value", "refused")


def test_a_wrong_password_is_named(estate: KubernetesEstate, figures: Figures) -> None:
    """A worker whose password is wrong says so in its termination message or its log, and the topics job likewise."""
    with pytest.raises(RuntimeError, match=r"pre-install"):
        estate.cluster.upgrade("other", *estate.images, "--set", "topicsJob.kafkaSecretName=kafka-wrong")
    try:
        pods = estate.api.pods(OTHER)
        logs = estate.cluster.kubectl("logs", "-l", OTHER, "--tail=50")
        messages = [
            state["terminated"].get("message", "")
            for pod in pods
            for container in pod["status"].get("containerStatuses", ())
            for state in (container["state"], container.get("lastState", {}))
            if "terminated" in state
        ]
    finally:
        estate.cluster.helm("uninstall", "other")
    named = "SASL" in logs or "assword" in logs
    described = any("SASL" in message or "assword" in message for message in messages)
    figures.add(
        "K9",
        "a Secret with a wrong password",
        f"named in the log: {named}, in `kubectl describe pod`: {described}; {logs.strip().splitlines()[-1][:160]!r}",
        "`kubectl describe pod` shows why",
        is_met=described,
    )
    assert named


def test_two_releases_of_one_name_are_noticed(estate: KubernetesEstate, figures: Figures) -> None:
    """The workers of a release of the same name in another namespace share a group with ours, and say so."""
    neighbour = estate.neighbour()
    warning = "two installations share a consumer group"
    try:
        began_s = time.monotonic()
        alone = ("topicsJob.enabled=false", "worker.replicas=1", "conflate.replicas=0")
        neighbour.upgrade(RELEASE, *estate.images, *(word for each in alone for word in ("--set", each)))
        line = neighbour.wait_for(
            "the warning",
            lambda: next((one for one in neighbour.kubectl("logs", OTHERS_POD).splitlines() if warning in one), None),
        )
        warned_s = time.monotonic() - began_s
    finally:
        neighbour.remove()
    assert OTHERS_POD in line
    assert not any(password in line for password in estate.passwords.values())
    estate.wait_ready()
    estate.check()
    figures.add(
        "K9", "a release of the same name in two namespaces", f"the log warns of it after {warned_s:.0f} s", "warned"
    )


def test_no_password_shows(estate: KubernetesEstate, figures: Figures) -> None:
    """The passwords of the roles are in Secrets alone: not in objects, logs, pages or command lines."""
    names = [pod["metadata"]["name"] for pod in estate.api.pods(PODS)]
    objects = "configmaps,pods,statefulsets,deployments,services,jobs,events"
    places = {
        "objects": estate.cluster.kubectl("get", objects, "-o", "yaml"),
        "logs": "".join(estate.cluster.kubectl("logs", name) for name in names),
        "release": estate.cluster.helm("get", "all", "desk"),
    }
    for name in names:
        for page in ("metrics", "status", "readyz"):
            places[f"{name} {page}"] = estate.api.page(name, 9464, page)
        places[f"{name} command line"] = estate.cluster.kubectl(
            "exec", name, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
        )
    assert all(places.values())
    shown = {place for place, text in places.items() for password in estate.passwords.values() if password in text}
    figures.add(
        "K11",
        "canary passwords of four users",
        f"looked for in {len(places)} places, {len(json.dumps(places)) // 1024:,} KiB; found in {len(shown)}",
        "found nowhere",
        is_met=not shown,
    )
    assert not shown
