"""Finds keys of a SOW topic in wrong partitions, and moves them to the partition that their hash chooses."""

from processor.tools.healing.heal import Heal, Healed
from processor.tools.healing.look import NEWEST_MAX, Look, look, topics_to_look_at

__all__ = ["NEWEST_MAX", "Heal", "Healed", "Look", "look", "topics_to_look_at"]
