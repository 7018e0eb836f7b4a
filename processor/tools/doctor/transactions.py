"""Checks that no transaction stands open in a partition: its readers and workers would wait for ever (KAFKA-20734)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from processor.errors import Stop
from processor.kafka.transactions.transaction_log import GROUP_OFFSETS
from processor.tools.doctor.finding import Finding
from processor.tools.open_transactions import standing

if TYPE_CHECKING:
    from processor.config import Config
    from processor.kafka.admin.admin import Cluster


def check_transactions(config: Config, cluster: Cluster) -> tuple[list[Finding], frozenset[str]]:
    """Whether the last stable offset of a partition has stood behind its end for longer than a transaction may take.

    Returns:
        The findings, and the topics of the settings that cannot be read to their end.
    """
    try:
        stretches = standing(config, cluster)
    except Stop as error:
        return [Finding("warn", "transactions", str(error), "sowstream transactions list")], frozenset()
    findings = []
    for name, there in stretches.items():
        for stretch in there:
            age_s = time.time() - stretch.since_ms / 1000
            found = f"a transaction has been open for {age_s:,.0f} s at offset {stretch.begin} of {stretch.end}"
            to_do = f"sowstream transactions list {name} says how it must end; never abort it unseen"
            if stretch.topic == GROUP_OFFSETS:
                # Other groups have their positions there too; whose it is takes more rights to see.
                found += f": the positions of a group, perhaps of the workers of {name}"
                findings.append(Finding("warn", stretch.place, found, to_do))
                continue
            findings.append(
                Finding("fail", stretch.place, f"{found}: readers wait there, and nothing is merged", to_do)
            )
    blocked = frozenset(
        name for name, there in stretches.items() if any(stretch.topic != GROUP_OFFSETS for stretch in there)
    )
    return findings or [Finding("ok", "transactions", "none stands open")], blocked
