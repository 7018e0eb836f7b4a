from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml

from spark_integration.pipeline import run_check

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from py4j.protocol import Py4JError

from processor.errors import ConfigurationError, Stop
from processor.telemetry.page_server import listening_socket
from spark_integration.cli import run_command
from spark_integration.cli.init import PIPELINE
from spark_integration.foundation.pyspark_private import sql_problem
from spark_integration.foundation.small_files import LocalFiles
from spark_integration.pipeline.driver_claim import DriverClaim
from spark_integration.pipeline.offline_check import ddl_problem
from spark_integration.pipeline.pipeline_settings import PipelineSettings
from spark_integration.pipeline.sql_check import sql_of, sql_problems, starting_jvm
from spark_integration.session import parser_jvm
from tests.endtoend.world import World
from tests.waiting import until

WRONG = """\
jobs:
  raw:   {job: ingest, from: {format: json, path: ./raw}, topic: ordres, nulls: ignored}
  feed:  {job: ingest, from: {format: json, path: ./incoming, schema: "id LNG"}, topic: oders}
  book:  {job: table, topic: orders, kind: scd3, to: {format: parqet, path: ./book}}
  hist:
    job: table
    topic: orders
    prefix: x
    to: {path: ./hist}
  kept:  {job: table, topic: orders, to: {path: ./lake}}
  all:   {job: archive, topics: [orders], to: {path: ./lake}}
  more:  {job: archive, topics: [depth], to: {path: ./archive}}
  rest:  {job: archive, topics: [orders], to: {path: ./archive}}
  items: {job: features, from: [orders], sql: SELECT 1, topic: depth, key: [name]}
  depth:
    {job: features, from: [orders], sql: SELECT 1, topic: depht, key: [item], schemas: {orders: "id LONG qty INT"}}
"""
DDL = "no DDL such as `id LONG, name STRING`"


def test_all_mistakes_of_the_settings_are_shown_at_once(tmp_path) -> None:
    """Each has its line, its job and the closest name, in the order of the file; neither Spark nor Kafka is asked.

    A job with a wrong setting is checked by its other settings; archives alone may share a place.
    """
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump({"topics": {"orders": {}, "depth": {"key": ["/item"]}}}))
    (tmp_path / "pipeline.yaml").write_text(WRONG)
    with pytest.raises(ConfigurationError) as error:
        PipelineSettings.load(tmp_path / "pipeline.yaml")
    lines = [line.strip() for line in str(error.value).splitlines()[1:]]
    assert lines == [
        "line 2: jobs.raw.nulls: there is no nulls 'ignored'; did you mean 'ignore'?",
        "line 2: jobs.raw.topic: there is no topic 'ordres'; did you mean 'orders'?",
        "line 3: jobs.feed.topic: there is no topic 'oders'; did you mean 'orders'?",
        f"line 3: jobs.feed.from.schema: {DDL}: column 'id': there is no type 'LNG'; did you mean 'LONG'?",
        "line 4: jobs.book.kind: there is no kind 'scd3'; did you mean 'scd2'?",
        "line 4: jobs.book.to.format: there is no format 'parqet'; did you mean 'parquet'?",
        "line 5: jobs.hist: prefix is for kind scd2; leave it out",
        "line 11: jobs.all.to.path: job 'kept' writes there too; give each a place of its own",
        (
            "line 14: jobs.items: key is ['name'], and that of the topic depth is ['/item']: name the same fields in "
            "the same order, each a column of the result"
        ),
        "line 16: jobs.depth.topic: there is no topic 'depht'; did you mean 'depth'?",
        f"line 16: jobs.depth.schemas.orders: {DDL}: expected a comma after column 'id', found 'qty'",
    ]


def test_places_that_a_job_would_read_or_fill_twice_are_refused(tmp_path) -> None:
    """Files below those to ingest, at a path with wildcards too, and two archives of a topic in one place.

    Spark takes no file below a name that begins with `_` or `.`; archives of different topics or roles share a place.
    """
    jobs = {
        "feed": {"job": "ingest", "from": {"format": "json", "path": "./in"}, "topic": "orders", "quarantine": "./in"},
        "more": {"job": "ingest", "from": {"format": "json", "path": "./i*/new"}, "topic": "orders",
                 "quarantine": "./in/_bad"},
        "book": {"job": "table", "topic": "orders", "to": {"path": "./in/new/book"}},
        "one": {"job": "archive", "topics": ["orders"], "roles": ["delta"], "to": {"path": "./lake"}},
        "two": {"job": "archive", "topics": ["orders"], "roles": ["publish"], "to": {"path": "./lake"}},
        "three": {"job": "archive", "topics": ["depth", "orders"], "to": {"path": "./lake"}},
    }  # fmt: skip
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump({"topics": {"orders": {}, "depth": {"key": ["/item"]}}}))
    pipeline = {"checkpoints": "./in/new/c", "jobs": jobs}
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(pipeline, sort_keys=False))
    with pytest.raises(ConfigurationError) as error:
        PipelineSettings.load(tmp_path / "pipeline.yaml")
    lines = [line.partition(": jobs.")[2] for line in str(error.value).splitlines()[1:]]
    below = "is below it and would be read as input; give a place elsewhere"
    assert sorted(lines) == sorted([
        f"feed.from.path: the checkpoints, {tmp_path}/in/new/c, {below}",
        f"feed.from.path: the quarantine of 'feed', {tmp_path}/in, {below}",
        f"feed.from.path: the table of 'book', {tmp_path}/in/new/book, {below}",
        f"more.from.path: the checkpoints, {tmp_path}/in/new/c, {below}",
        f"more.from.path: the table of 'book', {tmp_path}/in/new/book, {below}",
        "three.to.path: job 'one' archives orders.delta there too, and each record would be there twice",
    ])  # fmt: skip


def test_a_directory_that_this_user_may_not_enter_is_a_finding_like_others() -> None:
    """Neither its files nor those below it end the check with a traceback."""
    home, user = Path(tempfile.mkdtemp()), os.geteuid()
    home.chmod(0o777)
    try:
        if user == 0:
            os.seteuid(65534)
        (home / "closed").mkdir(0o000)
        assert run_check._exists(home / "closed" / "in") is None
        for call in (lambda files: files.read("claim"), lambda files: files.names("below")):
            with pytest.raises(ConfigurationError, match="cannot be read by this user"):
                call(LocalFiles(home / "closed"))
    finally:
        os.seteuid(user)
        (home / "closed").rmdir()
        home.rmdir()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id LONG, note STRING", None),
        ("a array<int>, b map<string,struct<x:int,y:decimal(10, 2)>> NOT NULL COMMENT 'x, y', `c d` varchar(3)", None),
        ("a interval day to second, b STRING COLLATE UNICODE, c timestamp_ntz, d struct<>", None),
        ("id", "column 'id' has no type, such as id STRING"),
        ("id LONG,", "expected the name of a column, found 'the end'"),
        ("a array<int", "the type array of column 'a' is not closed by >"),
        ("a map<int>", "the type map of column 'a' has two types"),
        ("a decimal(10", "the type decimal of column 'a' is not closed by )"),
        ("a struct<x: int, y>", "column 'y' has no type"),
        ("array<int>", "column 'array': there is no type '<'"),
        ("a " + "array<" * 200, "column 'a' is nested deeper than 100 types"),
    ],
)
def test_columns_are_checked_without_spark(text, problem) -> None:
    """The reason names the column; a text that Spark may know passes."""
    assert ddl_problem(text) == problem


def _file(world, **jobs):
    file = world.directory / "pipeline.yaml"
    file.write_text(yaml.safe_dump({"settings": "sowstream.yaml", "jobs": jobs}))
    return str(file)


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a process of this machine is seen in /proc")
def test_a_check_finds_what_a_run_would_wait_for_or_fail_of(bootstrap, tmp_path, unique, capsys) -> None:
    """Missing topics and folders are notes; a place that is no directory, and a living driver, are problems.

    A run ends by the same problems before Spark is started.
    """
    world = World(bootstrap, tmp_path, unique, creates_topics=False)
    try:
        book = {"job": "table", "topic": unique, "to": {"path": "book"}}
        file = _file(world, feed={"job": "ingest", "from": {"path": "incoming"}, "topic": unique}, book=book)
        assert run_command(["check", "--no-sql", "-c", file]) == 0
        out, err = capsys.readouterr()
        notes = out.splitlines()
        assert len(notes) == 3
        places = [re.match(r"note: line \d: jobs\.(book|feed)", note) for note in notes]
        assert all(places), notes
        assert f"waits for the Kafka topic '{unique}.sow'; `sowstream topics apply` creates" in out
        assert f"jobs.feed.from.path: waits for {tmp_path}/incoming, which does not exist yet" in out
        assert err == "Nothing stands in the way.\n"
        (tmp_path / "file").write_text("")
        DriverClaim("feed", LocalFiles(tmp_path / "checkpoints/feed")).take()
        jobs = {"feed": {"job": "ingest", "from": {"path": "incoming"}, "topic": unique},
                "book": book | {"to": {"path": "file/book"}}}  # fmt: skip
        file = _file(world, **jobs)
        assert run_command(["run", "-c", file]) == 2
        err = capsys.readouterr().err
        assert f"jobs.book.to.path: {tmp_path}/file/book cannot be made: {tmp_path}/file is no directory" in err
        assert f"jobs.feed: another driver runs this job: process {os.getpid()} on " in err
    finally:
        world.close()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a process of this machine is seen in /proc")
def test_a_living_driver_is_one_problem_however_many_jobs_it_runs(tmp_path) -> None:
    """A process that runs several jobs is one line, with all of their names; the place is that of the first one."""
    assert run_command(["init", str(tmp_path)]) == 0
    for job in ("archive", "book", "depth"):
        DriverClaim(job, LocalFiles(tmp_path / "checkpoints" / job)).take()
    pipeline = PipelineSettings.load(tmp_path / "pipeline.yaml")
    found = [str(finding) for finding in run_check._drivers(pipeline, pipeline.chosen(None))]
    start = f"line 7: jobs.archive: another driver runs this job and book, depth: process {os.getpid()} on "
    assert [line[: len(start)] for line in found] == [start]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a process of this machine is seen in /proc")
def test_a_metrics_port_in_use_is_found_unless_the_pipeline_itself_has_it(tmp_path, monkeypatch) -> None:
    """The port has its line and the reason; next to a running driver of a job, that driver is the problem."""
    monkeypatch.setattr(run_check, "Admin", partial(run_check.Admin, connect_timeout_s=0.1))
    with listening_socket(0, "127.0.0.1") as taken:
        port = taken.getsockname()[1]
        assert run_command(["init", str(tmp_path)]) == 0
        with (tmp_path / "pipeline.yaml").open("a") as file:
            file.write(f"metrics_port: {port}\nmetrics_host: 127.0.0.1\n")
        pipeline = PipelineSettings.load(tmp_path / "pipeline.yaml")
        found = [str(finding) for finding in run_check.check_run(pipeline, pipeline.chosen(None))]
        line = len(PIPELINE.splitlines()) + 1
        problem = f"line {line}: metrics_port: {port}: {os.strerror(errno.EADDRINUSE)}; choose another one"
        assert [line for line in found if "metrics_port" in line] == [problem]
        DriverClaim("book", LocalFiles(tmp_path / "checkpoints/book")).take()
        found = [str(finding) for finding in run_check.check_run(pipeline, pipeline.chosen(None))]
        assert [line for line in found if "another driver" in line]
        assert not [line for line in found if "metrics_port" in line]


@pytest.mark.spark
def test_a_check_without_kafka_says_so(tmp_path, capsys, monkeypatch) -> None:
    """A broker that does not answer is one line, with what to do, and exit code 1; the rest is checked all the same."""
    monkeypatch.setattr(run_check, "Admin", partial(run_check.Admin, connect_timeout_s=2.0))  # It waits for 15 s else.
    kafka = {"bootstrap.servers": "localhost:9"}
    topics = {"orders": {}, "sums": {"key": ["/item"]}}
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump({"kafka": kafka, "topics": topics}))
    (tmp_path / "pipeline.yaml").write_text(
        yaml.safe_dump(
            {
                "jobs": {
                    "feed": {"job": "ingest", "from": {"format": "jsn", "path": "incoming"}, "topic": "orders"},
                    "sums": {"job": "features", "from": ["orders"], "topic": "sums", "key": ["item"],
                             "sql": "SELECT item FRM x y"},
                }
            }
        )
    )  # fmt: skip
    assert run_command(["check", "-c", str(tmp_path / "pipeline.yaml")]) == 1
    out = capsys.readouterr().out
    assert "nothing listens on this port" in out
    assert "jobs.feed.from.format: 'jsn' needs a streaming source of that name in Spark; did you mean 'json'?" in out
    assert re.search(r"jobs\.sums\.sql: .*PARSE_SYNTAX_ERROR", out)


@pytest.mark.spark
def test_a_jvm_that_is_not_needed_ends_without_a_word(caplog) -> None:
    """A block that ends while the analyzer's classes are loaded ends its JVM; the broken call is in no log."""
    others = {*psutil.Process().children()}
    with caplog.at_level(logging.DEBUG), starting_jvm():
        (jvm,) = {*psutil.Process().children()} - others
        until(lambda: [one for one in jvm.net_connections("tcp") if one.status == "ESTABLISHED"], "a call of the JVM")
    assert not jvm.is_running()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    logging.getLogger("sowstream.spark").error("later lines are logged")
    assert caplog.records[-1].message == "later lines are logged"


COLUMNS = "id LONG, item STRING NOT NULL COMMENT 'its name', qty LONG, tags ARRAY<STRUCT<name: STRING>>"
QUERIES = {
    "SELECT item, sum(qty) AS qty FROM orders GROUP BY item": None,
    "WITH big AS (SELECT * FROM orders WHERE qty > 5) SELECT item, count(*) AS n FROM big GROUP BY item -- all": None,
    "SELECT item, _sow.version, t.name FROM orders LATERAL VIEW explode(tags) e AS t;": None,
    "SELECT o.item, max_by(qty, id) FROM Orders o JOIN `more-orders` m USING (id) GROUP BY 1": None,
    "SELECT item FROM lake.db.other JOIN orders USING (id)": None,
    "SELECT item FROM ordrs": "there is no table 'ordrs'; did you mean 'orders'?",
    "SELECT item FROM orders WHERE id IN (SELECT id FROM oders)": "there is no table 'oders'; did you mean 'orders'?",
    "SELECT item, sume(qty) AS qty FROM orders GROUP BY item": "there is no function 'sume'; did you mean 'sum'?",
    "SELECT item, `my fun`(qty) AS qty FROM orders": "there is no function 'my fun'",
    "SELECT item, lake.db.fun(qty) AS qty FROM orders": None,
    "SELECT item FROM orders, explod(array(1))": "there is no function 'explod'; did you mean 'explode'?",
    "SELECT item, e FROM orders LATERAL VIEW explod(tags) AS e": "there is no function 'explod'; did you mean",
    "SELECT itm AS item FROM orders": "with name `itm` cannot be resolved. Did you mean one of the following? [",
    "SELECT item, qty FROM orders GROUP BY item": "[MISSING_AGGREGATION] ",
    "SELECT item, _sow.versoin FROM orders": "[FIELD_NOT_FOUND] ",
    "SELECT id, qty FROM orders": "the result has no key column 'item'; it has: id, qty",
}
"""Queries, each with its problem, or with none."""


@pytest.mark.spark
def test_names_in_sql_are_checked_without_a_session(tmp_path) -> None:
    """Tables, functions, columns and keys that do not exist are found; names that only a session knows pass.

    Of a source without columns in the settings, tables and functions alone are checked; with a catalog no name is. A
    text that Spark's parser cannot read is one message, and its JVM is gone afterwards.
    """
    topics = {"orders": {}, "more-orders": {}, "sums": {"key": ["/item"]}}
    (tmp_path / "sowstream.yaml").write_text(yaml.safe_dump({"topics": topics}))
    query = {"job": "features", "from": ["orders", "more-orders"], "topic": "sums", "key": ["item"]}
    declared = {"schemas": {"orders": COLUMNS, "more-orders": "id LONG, px DOUBLE"}}
    jobs = {f"q{n}": {**query, **declared, "sql": sql} for n, sql in enumerate(QUERIES)}
    jobs["plain"] = {**query, "sql": "SELECT anything FROM orders"}
    jobs["plain_function"] = {**query, "sql": "SELECT item, sume(qty) AS qty FROM orders GROUP BY item"}
    jobs["plain_table"] = {**query, "sql": "SELECT item FROM orders JOIN more"}
    feed = {"job": "ingest", "from": {"path": "in", "schema": "a INT, line INT"}, "topic": "orders"}
    jobs["feed"] = {**feed, "mapping": {"id": "a + line", "n": "b", "m": "upper(a", "k": "a -- c"}}
    file = tmp_path / "pipeline.yaml"
    expected = {f"q{n}.sql": problem for n, problem in enumerate(QUERIES.values()) if problem is not None}
    expected |= {"plain_table.sql": "there is no table 'more'; did you mean "}
    expected |= {"plain_function.sql": "there is no function 'sume'"}
    expected |= {"feed.mapping.n": "[UNRESOLVED_COLUMN.WITH_SUGGESTION] ", "feed.mapping.m": "\n[PARSE_SYNTAX_ERROR] "}
    with parser_jvm() as wait:
        jvm = wait()
        assert sql_problem(jvm, "SELECT a, sum(b) FROM orders GROUP BY a", is_query=True) is None
        assert sql_problem(jvm, "a + 1", is_query=False) is None
        assert "PARSE_SYNTAX_ERROR" in (sql_problem(jvm, "SELECT a FRM orders x", is_query=True) or "")
        for more in ({}, {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}):
            file.write_text(yaml.safe_dump({"spark": more, "jobs": jobs}))
            pipeline = PipelineSettings.load(file)
            found = [*sql_problems(pipeline, sql_of(pipeline.chosen(None)), jvm)]
            places = [re.match(r"line \d+: jobs\.(\S+): ", line) for line in found]
            problems = {place[1]: line[place.end() :] for line, place in zip(found, places, strict=True) if place}
            assert len(problems) == len(found), found
            assert problems.keys() == (expected.keys() if not more else {"feed.mapping.m"}), found
            wrong = {place: text for place, text in problems.items() if expected[place] not in f"\n{text}"}
            assert not wrong
    with pytest.raises(Py4JError):
        jvm.java.lang.System.currentTimeMillis()


@pytest.mark.parametrize("home", ["none", "empty"])
def test_a_parser_that_does_not_start_is_named_with_the_way_round(home, tmp_path, monkeypatch) -> None:
    """Without Java, or where Spark has no jars, the error has their place and the option."""
    monkeypatch.setenv("JAVA_HOME" if home == "none" else "SPARK_HOME", str(tmp_path))
    with parser_jvm() as wait, pytest.raises(Stop, match=r"Spark's SQL parser, of .*jars, did not start .* --no-sql"):
        wait()


@pytest.mark.skipif(os.name == "nt", reason="the Java of this test is a script")
def test_java_is_started_for_sql_alone(tmp_path, monkeypatch) -> None:
    """A check starts no Java where no chosen job has SQL, where the SQL is left out, and where the settings are wrong.

    The Java of this test notes its start.
    """
    monkeypatch.setattr(run_check, "Admin", partial(run_check.Admin, connect_timeout_s=0.1))
    mark = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.9"\nMODULES="java.base jdk.incubator.vector"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    topics = {"orders": {}, "sums": {"key": ["/item"]}}
    (tmp_path / "sowstream.yaml").write_text(
        yaml.safe_dump({"kafka": {"bootstrap.servers": "localhost:9"}, "topics": topics})
    )
    book = {"job": "table", "topic": "orders", "to": {"path": "book"}}
    sums = {"job": "features", "from": ["orders"], "topic": "sums", "key": ["item"], "sql": "SELECT 1 AS item"}
    file = tmp_path / "pipeline.yaml"

    def starts(*words: str, **more: object) -> bool:
        mark.unlink(missing_ok=True)
        file.write_text(yaml.safe_dump({"jobs": {"book": book | more, "sums": sums}}))
        run_command(["check", "-c", str(file), *words])
        return mark.exists()

    assert starts()
    assert not starts("book")
    assert not starts("--no-sql")
    assert not starts(kind="scd3")


@pytest.mark.skipif(os.name == "nt", reason="the Java of this test is a script")
def test_the_parsers_classes_are_kept_once_for_each_java(tmp_path, monkeypatch) -> None:
    """A JVM that may keep them does where no whole file of its Java is; later ones use that file, none without a cache.

    The Java of this test notes its options. The first bytes of a file that is half written are zeros.
    """
    java, noted = tmp_path / "bin" / "java", tmp_path / "noted"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho \"$*\" > '{noted}'\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SOWSTREAM_CACHE", str(tmp_path / "cache"))

    def option(*, keeps_classes: bool) -> tuple[str, Path | None]:
        with parser_jvm(keeps_classes=keeps_classes) as wait, pytest.raises(Stop):
            wait()
        found = re.search(r"-XX:(ArchiveClassesAtExit|SharedArchiveFile)=(\S+)", noted.read_text())
        return (found[1], Path(found[2])) if found else ("none", None)

    assert option(keeps_classes=False) == ("none", None)
    kept, file = option(keeps_classes=True)
    assert kept == "ArchiveClassesAtExit"
    assert file is not None
    file.write_bytes(bytes(8))
    assert option(keeps_classes=True) == ("ArchiveClassesAtExit", file)
    assert option(keeps_classes=False) == ("none", None)
    file.write_bytes(b"\xa8\xab\x0b\xf0")
    assert option(keeps_classes=True) == option(keeps_classes=False) == ("SharedArchiveFile", file)
    os.utime(java, (1, 1))
    other = option(keeps_classes=True)[1]
    assert other is not None
    assert other != file
    monkeypatch.setenv("SOWSTREAM_CACHE", str(java))
    assert option(keeps_classes=True) == ("none", None)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the files of a process are seen in /proc")
def test_a_parser_begins_with_the_classes_that_another_one_has_kept(tmp_path, monkeypatch) -> None:
    """A JVM that has been used writes them after the block; the next one has the file in its memory, and answers."""
    monkeypatch.setenv("SOWSTREAM_CACHE", str(tmp_path))
    others = {*psutil.Process().children()}
    with starting_jvm(keeps_classes=True) as wait:
        wait()
        (first,) = {*psutil.Process().children()} - others
    until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE, "the end of the JVM")
    (file,) = tmp_path.glob("parser/*.jsa")
    with starting_jvm() as wait:
        assert "PARSE_SYNTAX_ERROR" in (sql_problem(wait(), "SELECT a FRM orders x", is_query=True) or "")
        (second,) = {*psutil.Process().children()} - others - {first}
        assert str(file) in {part.path for part in second.memory_maps()}
    assert not second.is_running()


def test_a_check_imports_little(tmp_path) -> None:
    """Jobs of each kind are read and checked without pandas and the data source, whose imports take a second."""
    assert run_command(["init", str(tmp_path / "first")]) == 0
    slow = ("pandas", "spark_integration.read.source.data_source")
    program = (
        "import sys, pathlib\n"
        "from spark_integration.cli.pipeline_file import pipeline_settings\n"
        "pipeline_settings(pathlib.Path(sys.argv[1]))\n"
        "import spark_integration.foundation.pyspark_private, spark_integration.pipeline.run_check\n"
        f"print([name for name in {slow!r} if name in sys.modules])"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "first" / "pipeline.yaml")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
def test_sparks_parser_reads_the_sql_without_a_session(bootstrap, tmp_path, unique, capsys) -> None:
    """A query and an expression that Spark cannot parse are shown with their lines, as nothing else is wrong."""
    world = World(bootstrap, tmp_path, unique, others={f"{unique}_d": {"key": ["/item"]}})
    try:
        (tmp_path / "incoming").mkdir()
        file = _file(
            world,
            depth={"job": "features", "from": [unique], "sql": "SELECT item FRM x y", "topic": f"{unique}_d",
                   "key": ["item"]},
            feed={"job": "ingest", "from": {"path": "incoming", "schema": "a INT"}, "topic": unique,
                  "mapping": {"id": "a +"}},
        )  # fmt: skip
        program = [sys.executable, "-m", "spark_integration.cli", "check", "-c", file]
        result = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
        assert result.returncode == 1, result.stderr
        assert "jobs.depth.sql: " in result.stdout
        assert "PARSE_SYNTAX_ERROR" in result.stdout
        assert "jobs.feed.mapping.id: " in result.stdout
        assert result.stderr.endswith("2 problems.\n")
    finally:
        world.close()
