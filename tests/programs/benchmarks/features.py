"""Measures the costs of each feature for a worker: the same input, without and with one feature, in turn."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import tempfile
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from processor.codec import codec_of
from processor.config import load as load_settings
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.programs.benchmarks.figures import Write, load
from tests.programs.benchmarks.throughput import Figure, broker, print_progress, worker, write_settings

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "status", "type": "string"},
        {"name": "symbol", "type": "string"},
        {"name": "qty", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "notes", "type": "string"},
        {
            "name": "customer",
            "type": {
                "type": "record",
                "name": "Customer",
                "fields": [
                    {"name": "name", "type": "string"},
                    {"name": "tier", "type": "long"},
                    {
                        "name": "address",
                        "type": {"type": "record", "name": "Address", "fields": [{"name": "zip", "type": "long"}]},
                    },
                ],
            },
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "ts", "type": "long"},
    ],
}


class Feature(NamedTuple):
    """A feature with its costs."""

    topic: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default is never changed
    """Settings of the topic."""
    headers: Any = None
    """The headers of each message, by its number."""


FEATURES: dict[str, Feature] = {
    "plain JSON": Feature(),
    "two unknown headers": Feature(headers=lambda _: [("traceparent", b"00-4bf92f35-00f067aa-01"), ("app", b"desk")]),
    "correlation id": Feature(headers=lambda number: [("correlation_id", b"%d" % number)]),
    "header source on outputs": Feature({"source_header": True}),
    "expiration by the topic": Feature({"expiration": "1h"}),
    "expiration by header": Feature(headers=lambda _: [("expiration", b"3600")]),
    "client and sequence": Feature(headers=lambda number: [("client", b"feed"), ("sequence", b"%d" % (number + 1))]),
    "the same, persisted ack": Feature(
        headers=lambda number: [("client", b"feed"), ("sequence", b"%d" % (number + 1)), ("ack_type", b"persisted")]
    ),
    "processed ack of each": Feature(
        headers=lambda number: [("client", b"feed"), ("sequence", b"%d" % (number + 1)), ("ack_type", b"processed")]
    ),
    "merge rule and sequence group": Feature(
        {"merge_rules": {"/qty": "sum"}, "sequence_groups": [{"by": "/ts", "fields": ["/price"]}]}
    ),
    "MessagePack": Feature({"message_type": "msgpack"}),
    "Avro": Feature({"message_type": "avro", "schema": "AVRO"}),
}


def main() -> None:
    """Run the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="a feature's name, or a part of it; plain JSON is always there")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    chosen = {
        name: feature
        for name, feature in FEATURES.items()
        if name == "plain JSON" or not arguments.only or any(part in name for part in arguments.only)
    }
    figures: dict[str, list[Figure]] = {name: [] for name in chosen}
    with broker(arguments.bootstrap) as bootstrap, contextlib.ExitStack() as cleanup:
        directory = Path(tempfile.mkdtemp(prefix="sowstream-bench-"))
        cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        schema = directory / "order.avsc"
        schema.write_text(json.dumps(AVRO))
        for number in range(1, arguments.rounds + 1):
            print_progress(f"round {number} of {arguments.rounds}")
            # Each round begins with another feature: the first measurement meets a cold broker.
            turn = number % len(chosen)
            for name, feature in [*chosen.items()][turn:] + [*chosen.items()][:turn]:
                figures[name].append(_measure(bootstrap, directory, schema, feature, arguments.records, arguments.keys))
                print_progress(f"  {name:32}{figures[name][-1].records_per_s:>10,.0f}/s")
    report(figures)


def _measure(bootstrap: str, directory: Path, schema: Path, feature: Feature, records: int, keys: int) -> Figure:
    """Run a worker with the feature."""
    name = f"bench{uuid.uuid4().hex[:8]}"
    topic = {setting: str(schema) if value == "AVRO" else value for setting, value in feature.topic.items()}
    settings = write_settings(directory / name, name, bootstrap, **topic)
    config = load_settings(settings)
    admin = Admin(config.kafka)
    admin.create(specs(config))
    load(bootstrap, f"{name}.publish", records, keys, write=_write(codec_of(config, name), feature))
    figure = worker(bootstrap, name, settings, records)
    admin.delete([spec.name for spec in specs(config)])
    return figure


def _write(codec: Any, feature: Feature) -> Write:
    """A function that writes messages as the topic's publishers do."""

    def write(number: int, body: dict[str, Any], is_delta: bool) -> tuple[bytes, list[tuple[str, bytes]]]:
        value, headers = codec.encode_delta(body) if is_delta else (codec.encode(body), [])
        if codec.uses_headers and not is_delta:
            headers = [("command", b"publish")]
        return value, [*headers, *(feature.headers(number) if feature.headers else [])]

    return write


def report(figures: dict[str, list[Figure]]) -> None:
    """Print the medians, and the costs of each feature relative to plain JSON."""
    plain = figures["plain JSON"]
    print(f"{'':32}{'records/s':>12}{'CPU s/M':>10}{'of plain':>10}   (medians of {len(plain)} rounds)")
    for name, runs in figures.items():
        rate = statistics.median(run.records_per_s for run in runs)
        cpu = statistics.median(run.cpu_s_per_million for run in runs)
        ratio = statistics.median(
            one.records_per_s / other.records_per_s for one, other in zip(runs, plain, strict=True)
        )
        print(f"{name:32}{rate:>12,.0f}{cpu:>10.1f}{ratio:>10.0%}")


if __name__ == "__main__":
    main()
