from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from processor.errors import ConfigurationError

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


def _places(spark, pipeline):
    rows = spark.read.parquet(str(pipeline.home / "archive"))
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows.collect())


def _written(pipeline):
    world = pipeline.world
    return sorted((f"{world.name}.{role}", record.partition, record.offset)
                  for role in ("publish", "delta") for record in world.read(role))  # fmt: skip


def _fill(world, begin, end):
    world.publish([(b"%d" % (n % 7), {"id": n % 7, "n": n}, {"x": str(n)}) for n in range(begin, end)])
    world.publish([(b"%d" % (n % 7), {"id": n % 7, "n": n}, {"version": "1"}) for n in range(begin, end)], "delta")


def test_every_offset_is_archived_once(pipeline, spark) -> None:
    """The archive has each record of both topics once: after a restart, a repeated batch, and a lost checkpoint."""
    world = pipeline.world
    to = {"format": "parquet", "path": "archive"}
    pipeline.write(keep={"job": "archive", "topics": [world.name], "to": to, "options": {"maxOffsetsPerTrigger": 40}})
    _fill(world, 0, 50)
    assert pipeline.run().views()["keep"].counts["written"] == 100
    assert _places(spark, pipeline) == _written(pipeline)

    # The batch was written, and the driver died before it was committed.
    commits = pipeline.home / "checkpoints/keep/commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    _fill(world, 50, 60)
    pipeline.run()
    assert _places(spark, pipeline) == _written(pipeline)

    saved = pipeline.home / "saved"
    shutil.copytree(pipeline.home / "checkpoints", saved)
    _fill(world, 60, 70)
    pipeline.run()
    shutil.rmtree(pipeline.home / "checkpoints")
    _fill(world, 70, 80)
    assert pipeline.run().views()["keep"].counts["written"] == 20
    assert _places(spark, pipeline) == _written(pipeline)

    shutil.rmtree(pipeline.home / "checkpoints")
    saved.rename(pipeline.home / "checkpoints")
    with pytest.raises(ConfigurationError, match="it is an older copy"):
        pipeline.run()


def test_a_batch_of_a_dead_writer_is_not_taken_for_whole(pipeline, spark) -> None:
    """A writer dies between the renames of two topics' directories, and its checkpoint is lost: nothing is missing."""
    world = pipeline.world
    pipeline.write(keep={"job": "archive", "topics": [world.name], "to": {"format": "parquet", "path": "archive"}})
    _fill(world, 0, 20)
    pipeline.run()
    _fill(world, 20, 40)
    pipeline.run()
    archive = pipeline.home / "archive"
    (number,) = (archive / "_sowstream").glob("*.json")
    batches = sorted(archive.glob(f"topic={world.name}.*/date=*/batch=*-{1:010d}"))
    assert len(batches) >= 2
    # The batch is there in part: its number is not yet written, and the lowest offsets of one partition are gone.
    number.write_text('{"batch": 0}')
    shutil.rmtree(batches[0])
    file = min(batches[1].glob("*.parquet"))
    rows = spark.read.parquet(str(file)).orderBy("offset").collect()
    spark.createDataFrame(rows[len(rows) // 2 :], spark.read.parquet(str(file)).schema).coalesce(1).write.mode(
        "overwrite"
    ).parquet(str(pipeline.home / "half"))
    file.unlink()
    shutil.copy(next((pipeline.home / "half").glob("*.parquet")), batches[1])
    shutil.rmtree(pipeline.home / "checkpoints")
    assert _places(spark, pipeline) != _written(pipeline)

    pipeline.run()
    assert _places(spark, pipeline) == _written(pipeline)
    aside = archive / "_sowstream/incomplete" / batches[1].relative_to(archive)
    assert list(aside.glob("*.parquet"))


def test_the_archive_is_a_history(pipeline, spark) -> None:
    """`merge_batch` makes the same records of the archive as of the topic itself, and the date is in the path."""
    from spark_integration import merge_batch

    world = pipeline.world
    pipeline.write(keep={"job": "archive", "topics": [world.name], "to": {"path": "archive"}})
    _fill(world, 0, 50)
    pipeline.run()
    rows = spark.read.parquet(str(pipeline.home / "archive"))
    assert {"key", "value", "headers", "topic", "partition", "offset", "timestamp", "date"} <= {*rows.columns}
    history = rows.where(rows["topic"] == f"{world.name}.publish")
    options = {"kafka.bootstrap.servers": world.bootstrap}
    with merge_batch(spark, world.name, config=world.config, history=history, partitions=2) as archived:
        found = {(bytes(row["key"]), bytes(row["value"])) for row in archived.records.select("key", "value").collect()}
    with merge_batch(spark, world.name, config=world.config, options=options, partitions=2) as read:
        wanted = {(bytes(row["key"]), bytes(row["value"])) for row in read.records.select("key", "value").collect()}
    assert found == wanted
    assert len(found) == 7
