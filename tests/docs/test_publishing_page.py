"""Each program in processor/docs/how-to/publishing.md publishes the records that the page describes."""

import pytest

from tests.docs.pages import block, blocks
from tests.docs.programs import run
from tests.endtoend.oracle import last_per_key

PAGE = "how-to/publishing.md"
PROGRAMS = [("Kafka's console producer", "sh"), ("Python", "python"), ("Java", "java")]
LONG = [("Go", "go")]


def check(world, section, language):
    """Run a program before a worker starts, and check the records and the worker's outputs."""
    run(world, language, block(PAGE, section, language))
    world.start()
    world.settle()
    assert world.read("dlq") == []
    assert last_per_key(world.read("sow")) == {"7": {"id": 7, "item": "tea", "qty": 4}}
    deltas = [(record.key, record.headers.get("kind", "update")) for record in world.read("delta")]
    assert sorted(deltas) == [(b"7", "insert"), (b"7", "update"), (b"8", "delete"), (b"8", "insert")]
    # Each record was sent to the partition of its key: none was re-keyed.
    assert len(world.read("publish")) == 4


@pytest.mark.broker
@pytest.mark.parametrize(("section", "language"), PROGRAMS)
def test_a_program_publishes_an_order_changes_it_and_deletes_another(world, section, language):
    """Order 7 has its new quantity, order 8 is deleted, and every record is in the partition of its key."""
    check(world, section, language)


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("section", "language"), LONG)
def test_a_program_that_is_built_first_publishes_the_same(world, section, language):
    """The program of a language whose compiler fetches packages publishes the same records."""
    check(world, section, language)


def test_every_program_of_the_page_is_run():
    """Every program of the page has a test here."""
    assert [(block.section, block.language) for block in blocks(PAGE)] == PROGRAMS + LONG
