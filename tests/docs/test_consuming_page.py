"""The programs in processor/docs/how-to/consuming.md, publishing.md and add-a-field.md do what the pages say."""

import contextlib
import json
import re

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from processor.client import Client
from processor.kafka.partitioner import partition_for
from processor.wire.forwarding import moved_record
from processor.wire.headers import Name
from tests.docs.pages import block, blocks, page
from tests.docs.programs import Running, run
from tests.endtoend.oracle import last_per_key
from tests.endtoend.world import World, random_commands

PAGE = "how-to/consuming.md"
PROGRAMS = [("Python", "python"), ("Java", "java")]
LONG = [("Go, full records", "go")]
CONSOLE = ("Kafka's console consumer", "sh")


def follow(program, table):
    """Apply one line of a program to the table; return the line's key."""
    key, _, text = next(program.lines()).partition(" ")
    if text == "-":
        table.pop(key, None)
    else:
        table[key] = json.loads(text)
    return key


def strict(table):
    """Records as texts, in which `1`, `1.0` and `true` differ."""
    return {key: json.dumps(record, sort_keys=True) for key, record in table.items()}


def reach(program, table, end):
    """Apply the lines of a program until the table is as expected."""
    while strict(table) != strict(end):
        follow(program, table)


def roll_back(world):
    """Write to the SOW and the delta topic in a transaction that is rolled back."""
    rogue = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": f"{world.name}-rogue"})
    rogue.init_transactions()
    rogue.begin_transaction()
    headers = {"version": "1", "kind": "insert"}
    for role in ("sow", "delta"):
        for partition in range(4):
            rogue.produce(f"{world.name}.{role}", b'{"id": "rolled back"}', b"rogue", partition, headers=headers)
    rogue.flush()
    rogue.abort_transaction()


def delete_unread(world, key, value, headers):
    """Write a delta that no program sees: Kafka deletes it while its transaction is open."""
    admin = AdminClient({"bootstrap.servers": world.bootstrap})
    place = TopicPartition(f"{world.name}.delta", partition_for(key, 4))
    unseen = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": f"{world.name}-unseen"})
    unseen.init_transactions()
    unseen.begin_transaction()
    unseen.produce(place.topic, json.dumps(value).encode(), key, place.partition, headers=headers)
    unseen.flush()
    [end] = admin.list_offsets({place: OffsetSpec.latest()}).values()
    place.offset = end.result().offset
    [deleted] = admin.delete_records([place]).values()
    deleted.result()
    unseen.commit_transaction()


def check(world, section, language):
    """Start a program in the middle of a feed, and compare its table with the SOW topic at the end of the feed."""
    world.publish(random_commands(17, 1_000, 40))
    world.start()
    world.settle()
    # The key has had many lives: its version needs more than 32 bits.
    world.publish([(b"old", {"id": "old"}, {"version": str(2**40)})], role="sow")
    roll_back(world)
    begin = last_per_key(world.read("sow"))
    table = {}
    with contextlib.closing(Running(world, language, block(PAGE, section, language))) as program:
        reach(program, table, begin)
        # The program has the state; from here on it applies deltas.
        removes = [
            (b"%d" % key, {"id": key, "more": {"a/b": key}}, {"remove": '["/n", "/a/x", "/more/a~1b"]'})
            for key in range(0, 40, 3)
        ]
        ends = [(b"0", {"id": 0, "more": {}}, {"command": "publish"}), (b"1", None, {})]
        world.publish([*random_commands(18, 1_000, 40), *removes, *ends])
        world.settle()
        for role, value in {"sow": {"id": "old", "n": 1}, "delta": {"n": 1}}.items():
            world.publish([(b"old", value, {"version": str(2**40 + 1)})], role=role)
        # A delta that was deleted unread: the program reads the SOW topic again.
        for role, value in {"sow": {"id": "old", "n": 3, "m": 2}, "delta": {"n": 3}}.items():
            world.publish([(b"old", value, {"version": str(2**40 + 3)})], role=role)
        roll_back(world)
        world.publish([(b"last", {"id": "last"}, {})])
        world.settle()
        reach(program, table, last_per_key(world.read("sow")))
    assert "rogue" not in table
    assert table["old"] == {"id": "old", "n": 3, "m": 2}
    assert len([record for record in world.read("delta") if "removed" in record.headers]) > 10


@pytest.mark.broker
@pytest.mark.parametrize(("section", "language"), PROGRAMS)
def test_a_programs_table_is_the_sow_topic(world, section, language):
    """Inserts, deltas, removed fields and deletes leave the program with the SOW topic's records and no others."""
    check(world, section, language)


@pytest.mark.broker
@pytest.mark.parametrize(("section", "language"), PROGRAMS)
def test_a_transaction_that_ends_later_in_the_sow_topic_leaves_no_gap(world, section, language):
    """A program has an update that is visible among the deltas before it is in the SOW topic."""
    for role in ("sow", "delta"):
        world.publish([(b"7", {"id": 7, "n": 1}, {"version": "1", "kind": "insert"})], role=role)
    [place] = [record for record in world.read("sow") if record.key == b"7"]
    late = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": f"{world.name}-late"})
    late.init_transactions()
    late.begin_transaction()
    late.produce(f"{world.name}.sow", b'{"id": 7, "n": 1, "m": 2}', b"7", place.partition, headers={"version": "2"})
    late.flush()
    world.publish([(b"7", {"m": 2}, {"version": "2"})], role="delta")
    table = {}
    with contextlib.closing(Running(world, language, block(PAGE, section, language))) as program:
        follow(program, table)
        # Meanwhile a program that does not wait for the transaction has gone on to the deltas.
        for number in range(8, 18):
            for role in ("sow", "delta"):
                headers = {"version": "1", "kind": "insert"}
                world.publish([(b"%d" % number, {"id": number}, headers)], role=role)
        late.commit_transaction()
        for role, value in {"sow": {"id": 7, "n": 3, "m": 2}, "delta": {"n": 3}}.items():
            world.publish([(b"7", value, {"version": "3"})], role=role)
        while table["7"] != {"id": 7, "n": 3, "m": 2}:
            follow(program, table)


@pytest.mark.broker
@pytest.mark.parametrize(("section", "language"), PROGRAMS)
def test_a_program_begins_again_where_deltas_were_deleted_unread(world, section, language):
    """A delete whose delta Kafka has deleted before it was read is in the table, also if its key never comes again."""
    for key in (7, 8):
        for role in ("sow", "delta"):
            world.publish([(b"%d" % key, {"id": key, "n": 1}, {"version": "1", "kind": "insert"})], role=role)
    table = {}
    with contextlib.closing(Running(world, language, block(PAGE, section, language))) as program:
        reach(program, table, {"7": {"id": 7, "n": 1}, "8": {"id": 8, "n": 1}})
        # The program reads the deltas.
        world.publish([(b"7", {"n": 2}, {"version": "2"})], role="delta")
        reach(program, table, {"7": {"id": 7, "n": 2}, "8": {"id": 8, "n": 1}})
        ends = [(b"7", {"id": 7, "n": 3}, {"version": "3"}), (b"8", None, {"version": "2", "kind": "delete"})]
        world.publish(ends, role="sow")
        delete_unread(world, b"8", {"id": 8}, {"version": "2", "kind": "delete"})
        reach(program, table, {"7": {"id": 7, "n": 3}})


def check_move(world, section, language, reads):
    """Start a program, let its topic move while it reads one of the two, and check its end."""
    key, value, headers = moved_record("orders_12")
    if reads == "sow":
        world.publish([(key, value, dict(headers))], role="sow")
    with contextlib.closing(Running(world, language, block(PAGE, section, language))) as program:
        if reads == "delta":
            for role in ("sow", "delta"):
                world.publish([(b"7", {"id": 7}, {"version": "1", "kind": "insert"})], role=role)
            reach(program, {}, {"7": {"id": 7}})
            world.publish([(key, value, dict(headers))], role="delta")
        with pytest.raises(AssertionError, match="the topic has moved to orders_12"):
            next(program.lines())


@pytest.mark.broker
@pytest.mark.parametrize("reads", ["sow", "delta"])
@pytest.mark.parametrize(("section", "language"), PROGRAMS)
def test_a_program_ends_where_its_topic_has_moved(world, section, language, reads):
    """The mark of a topic that has moved ends a program with the new name, among the records and among the deltas."""
    check_move(world, section, language, reads)


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("section", "language"), LONG)
def test_a_program_that_is_built_first_ends_where_its_topic_has_moved(world, section, language):
    """The mark of a topic that has moved ends the program with the new name."""
    check_move(world, section, language, "sow")


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("section", "language"), LONG)
def test_a_program_that_is_built_first_holds_the_same_table(world, section, language):
    """The program of a language whose compiler fetches packages has the SOW topic's records and no others."""
    check(world, section, language)


@pytest.mark.broker
@pytest.mark.long
def test_kafkas_console_consumer_prints_full_records_with_their_headers(world):
    """Each line has the headers, the key and the record; records of an aborted transaction are not printed."""
    world.publish([(b"7", {"id": 7, "qty": 1}, {}), (b"7", {"qty": 2}, {}), (b"8", {"id": 8}, {}), (b"8", None, {})])
    world.start()
    world.settle()
    roll_back(world)
    expected = {
        "7": [("version:1,kind:insert", '{"id":7,"qty":1}'), ("version:2", '{"id":7,"qty":2}')],
        "8": [("version:5,kind:insert", '{"id":8}'), ("version:6,kind:delete", "null")],  # Offsets 2 and 3.
    }
    printed = {}
    with contextlib.closing(Running(world, CONSOLE[1], block(PAGE, *CONSOLE))) as program:
        for line in program.lines():
            if line.count("\t") == 2:
                headers, key, value = line.split("\t")
                printed.setdefault(key, []).append((headers, value))
            if sum(map(len, printed.values())) == 4:
                break
    assert printed == expected


def test_the_table_of_headers_names_the_workers_headers():
    """The headers in the page's table are those that workers write."""
    names = re.findall(r"^\| `(\w+)` \| (?:both|delta) \|", page(PAGE), re.MULTILINE)
    assert names == [Name.VERSION, Name.KIND, Name.DELTA_BASE, Name.REMOVED, Name.EMPTY, Name.MOVED_TO]


def test_every_program_of_the_page_is_run():
    """Every program of the page has a test here."""
    assert [(block.section, block.language) for block in blocks(PAGE)] == [*PROGRAMS, *LONG, CONSOLE]


PUBLISHING = "how-to/publishing.md"
PUBLISHERS = [("Python", "python"), ("Java", "java")]
LONG_PUBLISHERS = [("Go", "go"), ("Kafka's console producer", "sh")]


def check_publisher(world, section, language):
    """Run a program before a worker starts, and check the records and the worker's outputs."""
    run(world, language, block(PUBLISHING, section, language))
    world.start()
    world.settle()
    assert world.read("dlq") == []
    assert last_per_key(world.read("sow")) == {"7": {"id": 7, "item": "tea", "qty": 4}}
    deltas = [(record.key, record.headers.get("kind", "update")) for record in world.read("delta")]
    assert sorted(deltas) == [(b"7", "insert"), (b"7", "update"), (b"8", "delete"), (b"8", "insert")]
    # Each record was sent to the partition of its key: none was re-keyed.
    assert len(world.read("publish")) == 4


@pytest.mark.broker
@pytest.mark.parametrize(("section", "language"), PUBLISHERS)
def test_a_program_publishes_an_order_changes_it_and_deletes_another(world, section, language):
    """Order 7 has its new quantity, order 8 is deleted, and every record is in the partition of its key."""
    check_publisher(world, section, language)


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("section", "language"), LONG_PUBLISHERS)
def test_a_program_that_is_built_first_publishes_the_same(world, section, language):
    """The program of a language whose compiler fetches packages, and Kafka's own in Java, publish the same records."""
    check_publisher(world, section, language)


def test_every_program_of_the_publishing_page_is_run():
    """Every program of the page has a test here."""
    assert {(block.section, block.language) for block in blocks(PUBLISHING)} == {*PUBLISHERS, *LONG_PUBLISHERS}


@pytest.fixture
def copied(bootstrap, tmp_path, unique, monkeypatch):
    """A world with another topic, whose key is `n`, and the program that copies its records there."""
    other = {"key": ["/n"], "partitions": 2, "expiration": 9e6}
    world = World(bootstrap, tmp_path, unique, others={f"{unique}2": other})
    program = block("how-to/add-a-field.md", "A key field, or another type", "python")
    program = program.replace('"orders2"', repr(f"{unique}2")).replace('"orders"', repr(unique))
    monkeypatch.chdir(world.directory)
    world.start()
    with contextlib.closing(world):
        yield world, lambda: exec(program, {})


@pytest.mark.broker
def test_the_copy_to_a_topic_with_another_key_has_each_record_and_its_end(copied):
    """Each record is copied in full, and expires when it would have expired; deltas and deletes then go on."""
    world, copy = copied
    world.publish([(b"%d" % n, {"id": n, "n": 100 + n}, {"expiration": "9000"} if n == 4 else {}) for n in range(5)])
    world.settle()
    copy()
    ends = [record.headers.get("expires_at") for record in world.read("sow") if record.key == b"4"]
    copies = {record.key: record for record in world.read("sow", f"{world.name}2")}
    assert {key: json.loads(record.value) for key, record in copies.items()} == {
        b"%d" % (100 + n): {"id": n, "n": 100 + n} for n in range(5)
    }
    assert [key for key, record in copies.items() if "expires_at" in record.headers] == [b"104"]
    assert int(copies[b"104"].headers["expires_at"]) == pytest.approx(int(ends[-1]), abs=5_000)
    with Client("desk", world.config) as desk:
        desk.delta_publish(f"{world.name}2", {"n": 103, "state": "held"}, ack="persisted").result(120)
        desk.sow_delete(f"{world.name}2", "102", ack="persisted").result(120)
        assert desk.record(f"{world.name}2", "103") == {"id": 3, "n": 103, "state": "held"}
        assert desk.record(f"{world.name}2", "102") is None


@pytest.mark.broker
def test_the_copy_names_the_records_that_it_has_not_copied(copied):
    """A record whose new key has a record already, of a delta that came before or of another old key, is named."""
    world, copy = copied
    world.publish([(b"%d" % n, {"id": n, "n": 100 + n % 4}, {}) for n in range(5)])
    world.settle()
    with Client("desk", world.config) as desk:
        desk.delta_publish(f"{world.name}2", {"n": 103, "state": "held"}, ack="persisted").result(120)
        with pytest.raises(SystemExit, match="not copied") as ended:
            copy()
        assert sorted(re.findall(r"'(\d)'", str(ended.value))) in (["0", "3"], ["3", "4"])
        assert {record["n"] for record in desk.records(f"{world.name}2")} == {100, 101, 102, 103}
