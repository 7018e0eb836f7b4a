"""The processor `ledger`: its sums outlast rollbacks and crashes."""

from example_plugin.ledger import Ledger

from sowstream.testing import ProcessorTestDriver


def test_the_sum_goes_on_after_a_crash() -> None:
    """The note is committed with the input position: no record counts twice, and none is lost."""
    driver = ProcessorTestDriver(Ledger, {}, name="totals", underlying="orders")
    driver.pipe_input("1", {"qty": 2})
    driver.commit()
    driver.pipe_input("1", {"qty": 3})
    driver.crash()
    driver.commit()
    driver.pipe_input("2", {"qty": 5})
    driver.commit()
    assert [record.value for record in driver.read_output("sow")] == [b'{"sum":2}', b'{"sum":5}', b'{"sum":10}']
