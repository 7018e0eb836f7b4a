"""Finds transactions that Kafka ended in its books but left open in a partition (KAFKA-20734), and ends them."""

from processor.tools.open_transactions.decide import Verdict, decide
from processor.tools.open_transactions.find import OpenTransaction, examine, standing
from processor.tools.open_transactions.settle import Settled, Settlement

__all__ = ["OpenTransaction", "Settled", "Settlement", "Verdict", "decide", "examine", "standing"]
