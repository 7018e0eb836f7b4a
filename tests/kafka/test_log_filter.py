import logging

from processor.kafka.log_filter import RepeatedLines


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """The time it is set to."""
        return self.now_s


def line(text: str) -> logging.LogRecord:
    """A line as librdkafka logs it."""
    return logging.LogRecord("sowstream.librdkafka", logging.ERROR, __file__, 1, "%s", (text,), None)


def test_a_line_that_comes_again_is_told_once_in_a_while_with_the_number_kept_back():
    """A repeated line passes once in a while with the number of repetitions; durations do not make it another line."""
    clock = Clock()
    repeats = RepeatedLines(10.0, clock)
    refused = "broker 1: Connection refused (after %dms in state CONNECT)"
    assert [repeats.filter(line(refused % ms)) for ms in range(4)] == [True, False, False, False]
    assert repeats.filter(line("broker 2: Connection refused (after 0ms in state CONNECT)"))
    clock.now_s = 10.0
    again = line(refused % 7)
    assert repeats.filter(again)
    assert again.getMessage() == f"{refused % 7} [3 more since the last such line]"
    clock.now_s = 20.0
    last = line(refused % 7)
    assert repeats.filter(last)
    assert last.getMessage() == refused % 7
