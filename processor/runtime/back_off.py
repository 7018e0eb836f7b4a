"""How long to wait after a transaction that failed."""

from __future__ import annotations

from processor.errors import ProcessorFailed, TransactionAborted

_BACK_OFF_S = (0.0, 0.1, 0.5, 2.0)  # After transactions that failed one after the other.


def back_off_s(error: TransactionAborted, failures: int) -> float:
    """How long to wait before the work is done again, after so many failures in a row before this one.

    Not at all where a processor raised: waiting mends nothing, and each turn finds one more record to put aside.
    """
    return 0.0 if isinstance(error, ProcessorFailed) else _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]
