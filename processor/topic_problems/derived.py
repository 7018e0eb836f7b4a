"""What is to be done about a family that a processor makes of another one's topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def make_anew(family: str, source: str) -> str:
    """How to make a family again of what its input has: nothing is lost by it but dead letters.

    Args:
        family: the family, such as `orders_5s`.
        source: the Kafka topic it is made of, such as `orders.sow`.
    """
    return (
        f"make {family} anew: (1) stop its workers; (2) save what is still needed of {family}.dlq, and delete all "
        f"topics {family}.*; (3) sowstream topics apply; (4) sowstream offsets adopt {family} --from earliest "
        f"--yes: {source} is read from its beginning; (5) start its workers, and its subscribers anew"
    )


def make_all_anew(families: Iterable[str], source: str) -> str:
    """What is to follow when a topic has lost its records; empty where nothing is made of it."""
    return "".join(f"; then {make_anew(family, source)}" for family in families)
