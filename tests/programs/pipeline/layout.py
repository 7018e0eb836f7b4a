"""The files and topics of a run: `sowstream.yaml`, `pipeline.yaml`, and the directories of the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from processor.kafka.admin.admin import Admin
from processor.topics.family import control_spec, directory_spec
from tests.endtoend.world import World

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

PARTITIONS: Final = 4
PATIENCE_S: Final = 300.0
"""Longest wait for any one event, on a machine that has other work."""
_RAW_PARTITIONS: Final = 2

FEATURES: Final = """
    SELECT item AS id, count(*) AS orders, count(px) AS priced, sum(qty) AS qty, max(px) AS px
    FROM {orders} GROUP BY item
"""
"""The query of the features, in the SQL that Spark and SQLite share."""

COLUMNS: Final = "id LONG, n LONG, item STRING, qty LONG, px DOUBLE"
"""The columns of an order in that query, as DDL: those of `rows.COLUMNS`."""

LATE: Final = ("lines", "counts")
"""The jobs whose input is empty until the pipeline works; `counts` has no schema either."""
BROKEN: Final = "broken"
"""A job that fails in each micro-batch, and is tried again."""

GROUPS: Final = {
    "ingest": ("files", "raw"),
    "archive": ("archive",),
    "tables": ("book", "history", "typed"),
    "features": ("depth",),
    "troubled": (*LATE, BROKEN),
}
"""The jobs by process."""
TOGETHER: Final = {"pipeline": tuple(job for jobs in GROUPS.values() for job in jobs)}
"""All jobs in one process and one session."""


class Layout:
    """The topics, which are deleted at the end, and the files of a pipeline."""

    def __init__(self, bootstrap: str, directory: Path, suffix: str = "", patience_s: float = PATIENCE_S) -> None:
        """Create the topics and the files.

        Args:
            bootstrap: the broker.
            directory: the directory of everything else.
            suffix: the end of the names of topics on a broker that others use too.
            patience_s: the longest wait for any one event.
        """
        self.orders, self.depth, self.raw = f"orders{suffix}", f"depth{suffix}", f"raw{suffix}"
        self.notes, self.counts = f"notes{suffix}", f"counts{suffix}"
        self.directory, self.patience_s = directory, patience_s
        self.incoming, self.csv_files = directory / "incoming", directory / "csv"
        self.incoming.mkdir()
        self.csv_files.mkdir()
        Admin({"bootstrap.servers": bootstrap}).create([directory_spec(), control_spec()])
        family = {"key": ["/id"], "partitions": PARTITIONS, "source_header": True}
        others = dict.fromkeys((self.depth, self.notes, self.counts), family)
        # Workers share the machine with several JVMs: a busy one is not to be taken for a dead one too often.
        runtime = {"session_timeout_s": 6, "transaction_timeout_s": 10}
        self.world = World(
            bootstrap,
            directory,
            self.orders,
            partitions=PARTITIONS,
            others=others,
            runtime=runtime,
            source_header=True,
        )
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._admin.create_topics([NewTopic(self.raw, _RAW_PARTITIONS, 1)])[self.raw].result(30)
        self.file = directory / "pipeline.yaml"
        self.file.write_text(yaml.safe_dump(self._pipeline(), sort_keys=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the workers and delete the topics."""
        self.world.close()
        self._admin.delete_topics([self.raw])[self.raw].result(self.patience_s)

    def topic(self, role: str, name: str | None = None) -> str:
        """The Kafka topic of a role, of `orders` or another family."""
        return self.world.config.kafka_names.topic(name or self.orders, role)

    @property
    def query(self) -> str:
        """The query of the features."""
        return " ".join(FEATURES.format(orders=self.orders).split())

    def _pipeline(self) -> dict[str, Any]:
        def parquet(name: str) -> dict[str, str]:
            return {"format": "parquet", "path": f"./{name}"}

        def features(source: str, topic: str, **more: Any) -> dict[str, Any]:
            job = {"job": "features", "from": [source], "topic": topic, "key": ["id"], "every": "2s"}
            return job | {"quarantine": f"./quarantine-{topic}", **more}

        ingest = {"job": "ingest", "topic": self.orders, "quarantine": "./quarantine"}
        lines = {"format": "csv", "path": "./csv", "schema": "id LONG, note STRING", "options": {"multiLine": True}}
        by_note = f"SELECT note AS id, count(*) AS lines FROM {self.notes} GROUP BY note"
        # It has one row over an empty source, too.
        failing = f"SELECT 'all' AS id, CAST(raise_error(CAST(count(*) AS STRING)) AS LONG) AS lines FROM {self.orders}"
        schemas = {self.orders: COLUMNS}
        return {
            "settings": "sowstream.yaml",
            "checkpoints": "./checkpoints",
            "spark": {
                # One core: there are as many processes as the machine has, and more.
                "spark.master": "local[1]",
                "spark.driver.memory": "1g",
                "spark.ui.enabled": "false",
                # A machine that stands still for a while is no dead executor.
                "spark.network.timeout": "900s",
                "spark.executor.heartbeatInterval": "60s",
                "spark.sql.shuffle.partitions": "2",
            },
            "jobs": {
                "files": ingest | {"from": {"format": "json", "path": "./incoming"}, "writers": 2},
                "raw": ingest | {"from": {"format": "kafka", "topic": self.raw}},
                "archive": {"job": "archive", "topics": [self.orders], "to": parquet("archive")},
                "book": {"job": "table", "topic": self.orders, "to": parquet("book")},
                "history": {"job": "table", "topic": self.orders, "kind": "scd2", "to": parquet("history")},
                "typed": {
                    "job": "table",
                    "topic": self.orders,
                    "schema": COLUMNS,
                    "to": parquet("typed"),
                    "quarantine": "./quarantine-typed",
                },
                "depth": features(self.orders, self.depth, sql=self.query, schemas=schemas),
                "lines": ingest | {"from": lines, "topic": self.notes, "nulls": "ignore", "writers": 2},
                "counts": features(self.notes, self.counts, sql=by_note),
                BROKEN: features(self.orders, self.counts, sql=failing, schemas=schemas, on_misfit="fail"),
            },
        }
