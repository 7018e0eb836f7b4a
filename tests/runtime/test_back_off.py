"""How long a thread waits after a transaction that failed."""

from processor.errors import ProcessorFailed, ProducerLost, TransactionAborted
from processor.runtime.back_off import back_off_s


def test_a_trouble_that_may_pass_is_given_more_time_with_each_failure():
    """The first time none; never more than two seconds."""
    for error in (TransactionAborted("x"), ProducerLost("x")):
        assert [back_off_s(error, failures) for failures in (0, 1, 2, 3, 4, 99)] == [0.0, 0.1, 0.5, 2.0, 2.0, 2.0]


def test_records_that_a_processor_raises_on_are_put_aside_without_waiting():
    """A thousand of them in a row would take half an hour, before the limit of rejections stops the worker."""
    assert [back_off_s(ProcessorFailed("x"), failures) for failures in (0, 3, 1000)] == [0.0, 0.0, 0.0]
