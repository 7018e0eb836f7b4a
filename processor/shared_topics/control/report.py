"""The problems of the control topic, for `topics check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import Stop
from processor.shared_topics.control.topic import ControlTopic
from processor.topics import Problem, control_problems

if TYPE_CHECKING:
    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.first_contact import Cluster


def control_report(config: Config, admin: Admin, cluster: Cluster) -> list[Problem]:
    """The problems of the control topic on a cluster; workers run in spite of them."""
    control = ControlTopic(config.kafka, admin, prefix=config.topic_prefix)
    try:
        # By name: the cluster's list of all topics lacks those that this user has no right to see.
        topics = admin.describe_topics([control.topic], shows_hidden=True)
    except Stop as error:
        what = f"cannot be looked at: {error}"
        return [Problem("warn", control.topic, what, "sowstream topics apply --acls prints who needs which rights")]
    return control_problems(control.spec, topics.get(control.topic), brokers=len(cluster.brokers))
