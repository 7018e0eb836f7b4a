import pytest

from processor.topic_problems import COMPACTION_LAG_MS, FoundTopic, Problem, problems
from processor.topics import Role, TopicSpec, family_specs

FAMILY = family_specs("orders", ("publish", "sow", "delta", "ack", "mark", "dlq"), partitions=4)
AS_IT_SHOULD_BE = {spec.name: FoundTopic(4, spec.config) for spec in FAMILY}


def with_setting(role: Role, **settings: str) -> list[Problem]:
    """What is said of a family in which one topic has other settings."""
    name = f"orders.{role}"
    topic = AS_IT_SHOULD_BE[name]
    changed = FoundTopic(topic.partitions, {**topic.config, **{k.replace("_", "."): v for k, v in settings.items()}})
    return problems(FAMILY, AS_IT_SHOULD_BE | {name: changed})


def test_topics_as_created_have_no_problem():
    """What `topics apply` creates passes `topics check`."""
    assert problems(FAMILY, AS_IT_SHOULD_BE) == []


def test_a_missing_topic_names_the_command_that_creates_it():
    """Topics that do not exist are told in the order records pass through them."""
    assert problems(FAMILY, {}) == [Problem(spec.name, "does not exist", "sowstream topics apply") for spec in FAMILY]


def test_partitions_are_equal_over_the_family():
    """A topic with another number of partitions is told with both numbers."""
    wrong = AS_IT_SHOULD_BE | {"orders.delta": FoundTopic(1, AS_IT_SHOULD_BE["orders.delta"].config)}
    (problem,) = problems(FAMILY, wrong)
    assert problem.topic == "orders.delta"
    assert problem.what == "has 1 partition where the family 'orders' is configured with 4"


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_a_compacted_input_loses_deltas(policy: str):
    """Compaction of the input is refused unless it waits for the longest outage."""
    (problem,) = with_setting("publish", cleanup_policy=policy)
    assert "is lost" in problem.what
    assert f"min.compaction.lag.ms={COMPACTION_LAG_MS}" in problem.to_do
    (early,) = with_setting("publish", cleanup_policy=policy, min_compaction_lag_ms=str(COMPACTION_LAG_MS - 1))
    assert early.topic == "orders.publish"
    assert with_setting("publish", cleanup_policy=policy, min_compaction_lag_ms=str(COMPACTION_LAG_MS)) == []


@pytest.mark.parametrize("role", ["delta", "ack", "dlq"])
def test_deltas_acks_and_dead_letters_are_never_compacted(role: Role):
    """However late: a key's last delta is not its state."""
    (problem,) = with_setting(role, cleanup_policy="compact", min_compaction_lag_ms=str(COMPACTION_LAG_MS))
    assert (problem.topic, "cleanup.policy=delete" in problem.to_do) == (f"orders.{role}", True)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_the_sow_topic_is_compacted_only(policy: str):
    """Retention would take records that are still the state of the world."""
    (problem,) = with_setting("sow", cleanup_policy=policy)
    assert (problem.topic, "cleanup.policy=compact" in problem.to_do) == ("orders.sow", True)


def test_the_mark_topic_is_compacted():
    """Else every start of a worker would read each mark as often as it changed; whether old marks go is the user's."""
    (problem,) = with_setting("mark", cleanup_policy="delete")
    assert (problem.topic, "cleanup.policy=[compact,delete]" in problem.to_do) == ("orders.mark", True)
    assert with_setting("mark", cleanup_policy="compact") == []


def test_large_records_fit_everywhere():
    """A smaller limit of size on any topic is told; a larger one is no problem."""
    (problem,) = with_setting("dlq", max_message_bytes="1048588")
    assert "1048588" in problem.what
    assert with_setting("dlq", max_message_bytes="99999999") == []


def test_a_topic_alone_is_checked_alone():
    """What is on the cluster besides the topics asked for does not matter."""
    spec = TopicSpec("x.publish", "publish", 1, {})
    assert problems([spec], AS_IT_SHOULD_BE | {"x.publish": FoundTopic(1, {})}) == []
