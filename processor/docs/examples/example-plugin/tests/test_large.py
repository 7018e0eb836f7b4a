"""The processor `large`: the records that it copies, counts, alerts of and rejects."""

import pytest
from example_plugin.large import Large

from sowstream.testing import ProcessorTestDriver


@pytest.fixture
def driver() -> ProcessorTestDriver:
    """One partition of a copy of the orders of at least 5."""
    return ProcessorTestDriver(Large, {"at_least": 5, "alert_at": 100}, name="big", underlying="orders")


def test_a_copy_follows_the_number_of_its_record(driver: ProcessorTestDriver) -> None:
    """A large record is copied and updated; the copy is deleted when its record becomes small."""
    for qty in (9, 7, 1):
        driver.pipe_input("1", {"qty": qty})
    driver.commit()
    assert [record.value for record in driver.read_output("sow")] == [b'{"qty":9}', b'{"qty":7}', None]


def test_a_small_record_is_counted_and_left_out(driver: ProcessorTestDriver) -> None:
    """A record below the limit makes no copy."""
    driver.pipe_input("1", {"qty": 4})
    driver.commit()
    assert driver.read_output("sow") == []
    assert driver.events == {"left_out": 1}


def test_a_very_large_record_alerts(driver: ProcessorTestDriver) -> None:
    """The output of the plug-in's own has the key and the number."""
    driver.pipe_input("1", {"qty": 100, "symbol": "X"})
    driver.commit()
    assert [(record.key, record.value) for record in driver.read_output("alerts")] == [(b"1", b'{"qty":100}')]


def test_a_record_without_a_number_is_rejected_alone(driver: ProcessorTestDriver) -> None:
    """The reject reason is the plug-in's own; the records around it are copied."""
    driver.pipe_batch([("1", {"qty": 9}, None), ("2", {"qty": "many"}, None), ("3", {"qty": 9}, None)])
    driver.commit()
    assert [record.key for record in driver.read_output("sow")] == [b"1", b"3"]
    assert driver.rejections == {"no_number": 1}


def test_a_crash_changes_nothing(driver: ProcessorTestDriver) -> None:
    """The copies come back from the SOW topic, and go on from there."""
    driver.pipe_input("1", {"qty": 9})
    driver.commit()
    driver.crash()
    driver.pipe_input("1", {"qty": 8})
    driver.commit()
    versions = [dict(record.headers or [])["version"] for record in driver.read_output("sow")]
    assert versions == [b"1", b"2"]
