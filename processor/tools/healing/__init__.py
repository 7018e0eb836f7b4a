"""Finds keys of a SOW topic in wrong partitions, and moves them to the partition that their hash chooses."""

from processor.tools.healing.check_keys import NEWEST_MAX, KeyCheck, check_keys, checkable_topics
from processor.tools.healing.heal import Heal, Healed

__all__ = ["NEWEST_MAX", "Heal", "Healed", "KeyCheck", "check_keys", "checkable_topics"]
