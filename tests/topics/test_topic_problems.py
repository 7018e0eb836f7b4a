import pytest

from processor.config import Config
from processor.hosting.pipeline import source_spec
from processor.installation.configured_pipelines import pipelines
from processor.topics import (
    COMPACTION_LAG_MS,
    ActualTopic,
    Problem,
    changes,
    control_problems,
    internal_problems,
    kept_ms,
    problems,
)
from processor.topics.family import (
    DAY_MS,
    DLQ_HEADERS_BYTES,
    MESSAGE_MAX_BYTES,
    RECORD_BYTES_MAX,
    Allowance,
    Role,
    TopicSpec,
    control_spec,
    copies,
    durable,
    family_specs,
)
from processor.topics.problem import duration

ROLES: tuple[Role, ...] = ("publish", "sow", "delta", "ack", "mark", "dlq")
FAMILY = family_specs("orders", ROLES, partitions=4)
NEEDED = {spec.role: spec.message_bytes for spec in FAMILY}
AS_IT_SHOULD_BE = {spec.name: ActualTopic(4, spec.config) for spec in FAMILY}


def changed(role: Role, replicas: int = 1, **settings: str) -> dict[str, ActualTopic]:
    """A family with other settings in one topic, and with so many copies."""
    family = {name: topic._replace(replicas=replicas) for name, topic in AS_IT_SHOULD_BE.items()}
    name = f"orders.{role}"
    config = {**family[name].config, **{setting.replace("_", "."): value for setting, value in settings.items()}}
    return family | {name: family[name]._replace(config=config)}


def with_setting(role: Role, **settings: str) -> list[Problem]:
    """The problems of a family with other settings in one topic."""
    return problems(FAMILY, changed(role, **settings))


def allowing(*losses: Allowance) -> list[TopicSpec]:
    """The family as it should be, with settings that accept losses."""
    return [spec._replace(allows=frozenset(losses)) for spec in FAMILY]


def test_topics_as_created_have_no_problem():
    """The topics that `topics apply` creates pass `topics check`."""
    assert problems(FAMILY, AS_IT_SHOULD_BE) == []


def test_a_missing_topic_names_the_command_that_creates_it():
    """Missing topics are reported with the command that creates them, in the order in which records pass them."""
    assert problems(FAMILY, {}) == [
        Problem("refuse", spec.name, "does not exist", "sowstream topics apply") for spec in FAMILY
    ]


def test_partitions_are_equal_over_the_family():
    """A topic with another number of partitions is reported with both numbers."""
    wrong = AS_IT_SHOULD_BE | {"orders.delta": ActualTopic(1, AS_IT_SHOULD_BE["orders.delta"].config)}
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
    assert "allow_lossy_compaction" in early.to_do
    assert with_setting("publish", cleanup_policy=policy, min_compaction_lag_ms=str(COMPACTION_LAG_MS)) == []


@pytest.mark.parametrize("role", ["delta", "ack", "dlq"])
def test_deltas_acks_and_dead_letters_are_never_compacted(role: Role):
    """Compaction of deltas, acks and dead letters is refused, with any delay: a key's last delta is not its state."""
    (problem,) = with_setting(role, cleanup_policy="compact", min_compaction_lag_ms=str(COMPACTION_LAG_MS))
    assert (problem.topic, "cleanup.policy=delete" in problem.to_do) == (f"orders.{role}", True)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_the_sow_topic_is_compacted_only(policy: str):
    """Retention on the SOW topic is refused: it would delete records that are still current."""
    (problem,) = with_setting("sow", cleanup_policy=policy)
    assert (problem.topic, "cleanup.policy=compact" in problem.to_do) == ("orders.sow", True)


def test_who_accepts_the_loss_of_deltas_is_warned_only():
    """`allow_lossy_compaction` lets a worker start over an input that is compacted too early."""
    (problem,) = problems(allowing("lossy_compaction"), changed("publish", cleanup_policy="compact"))
    assert (problem.severity, problem.topic) == ("warn", "orders.publish")


def test_the_mark_topic_is_compacted():
    """A mark topic that is not compacted is a problem: every start would read each mark as often as it changed."""
    (problem,) = with_setting("mark", cleanup_policy="delete")
    assert (problem.severity, problem.topic) == ("refuse", "orders.mark")
    assert problem.to_do.endswith("cleanup.policy=compact")
    assert with_setting("mark", cleanup_policy="compact") == []


def test_a_mark_topic_of_an_older_version_forgets_the_input_position():
    """A mark topic with `compact,delete`, from an older version, is a warning, unless its retention has no limit."""
    older = {"cleanup_policy": "compact,delete", "retention_ms": "604800000"}
    (problem,) = with_setting("mark", **older)
    assert (problem.severity, problem.topic) == ("warn", "orders.mark")
    assert "forgets marks after 7 days: the input position in it goes" in problem.what
    assert problem.to_do.endswith("cleanup.policy=compact")
    assert with_setting("mark", **older | {"retention_ms": "-1"}) == []


def test_a_mark_topic_for_the_input_position_alone_may_be_missing():
    """A missing mark topic is a warning if it is for the input position only: a worker runs without it."""
    family = [spec._replace(is_optional=spec.role == "mark") for spec in FAMILY]
    there = {name: topic for name, topic in AS_IT_SHOULD_BE.items() if name != "orders.mark"}
    (problem,) = problems(family, there)
    assert (problem.severity, problem.topic) == ("warn", "orders.mark")
    assert problem.to_do.startswith("sowstream topics apply")
    assert changes(family, there, there) == []
    assert [problem.severity for problem in problems(FAMILY, there)] == ["refuse"]


def test_large_records_fit_everywhere():
    """A topic with a smaller size limit is reported; a larger limit is no problem."""
    (problem,) = with_setting("dlq", max_message_bytes="1048588")
    assert "1048588" in problem.what
    assert with_setting("dlq", max_message_bytes="99999999") == []


def test_a_limit_is_refused_below_the_need_of_the_settings_alone():
    """The size limit is refused only below the need of the settings; managed Kafka's 8 MiB suffice for the defaults."""
    for role, least in NEEDED.items():
        assert with_setting(role, max_message_bytes=str(least)) == []
        (problem,) = with_setting(role, max_message_bytes=str(least - 1))
        refused = role != "publish"
        assert (problem.severity == "refuse", f"max.message.bytes={least}" in problem.to_do) == (refused, True)
    assert max(NEEDED.values()) < 8 * 1024 * 1024


def test_an_existing_input_may_have_kafkas_own_limit():
    """An input with Kafka's own size limit is a warning, as only publishers meet it; a batch must fit, though."""
    (problem,) = with_setting("publish", max_message_bytes="1048588")
    assert (problem.severity, "Kafka refuses the largest records" in problem.what) == ("warn", True)
    (problem,) = with_setting("publish", max_message_bytes="1000000")
    assert problem.severity == "refuse"


def test_the_need_grows_with_the_largest_record():
    """The needed size limit grows with the largest record, up to the limit of producers."""
    small, large = (
        {spec.role: spec for spec in family_specs("orders", ROLES, partitions=1, max_record_bytes=largest)}
        for largest in (1000, RECORD_BYTES_MAX)
    )
    assert large["sow"].message_bytes - small["sow"].message_bytes == RECORD_BYTES_MAX - 1000
    assert large["ack"].message_bytes == small["ack"].message_bytes
    assert max(spec.message_bytes for spec in large.values()) < MESSAGE_MAX_BYTES
    for spec in large.values():
        assert int(spec.config["max.message.bytes"]) >= spec.message_bytes


def test_managed_kafka_takes_new_topics_of_the_shipped_settings():
    """Managed Kafka accepts new topics with the default settings: messages of 8 MiB and segments of 50 MiB."""
    config = {spec.role: spec.config for spec in FAMILY}
    assert max(int(settings["max.message.bytes"]) for settings in config.values()) <= 8 * 1024 * 1024
    assert min(int(settings.get("segment.bytes", 2**30)) for settings in config.values()) >= 50 * 1024 * 1024
    room = int(config["dlq"]["max.message.bytes"]) - int(config["publish"]["max.message.bytes"])
    assert room >= DLQ_HEADERS_BYTES


def test_what_is_needed_is_a_part_of_what_is_asked_for():
    """The necessary settings alone pass the check, for clusters whose policy refuses the others; the user's stay."""
    family = family_specs("orders", ROLES, partitions=4, settings={"segment.bytes": "99999999"})
    assert problems(family, {spec.name: ActualTopic(4, spec.least) for spec in family}) == []
    least = {spec.role: spec.least for spec in durable(family, 3)}
    assert least["mark"] == {
        "cleanup.policy": "compact",
        "max.message.bytes": str(NEEDED["mark"]),
        "segment.bytes": "99999999",
        "min.insync.replicas": "2",
    }


def test_a_topic_alone_is_checked_alone():
    """A single topic is checked alone: other topics of the cluster do not matter."""
    spec = TopicSpec("x.publish", "publish", 1, {})
    assert problems([spec], AS_IT_SHOULD_BE | {"x.publish": ActualTopic(1, {})}) == []


class TestPartitions:
    """The remedies after a change of a number of partitions."""

    def test_the_steps_out_of_it_are_told_in_their_order(self):
        """For an input that has more partitions the steps lead to a family of a new name, in order."""
        (problem,) = problems(FAMILY, grown("publish", 5))
        steps = [problem.to_do.index(f"({number})") for number in range(1, 4)]
        assert steps == sorted(steps)
        assert "partitions: 5, moved_from: orders" in problem.to_do

    def test_an_input_whose_topic_is_to_move_may_have_grown(self):
        """The topic that takes its place is there: forwarding reads the new partitions."""
        family = [spec._replace(may_have_grown=True) for spec in FAMILY]
        assert problems(family, grown("publish", 5)) == []
        assert problems(family, grown("publish", 3)) != []

    def test_what_is_not_read_by_key_may_be_made_anew(self):
        """A topic that is not read by key may be recreated: the partition of a dead letter does not matter."""
        (problem,) = problems(FAMILY, grown("dlq", 5))
        assert "delete it" in problem.to_do
        assert "keys have moved" not in problem.to_do

    def test_settings_of_more_partitions_than_there_are_are_set_back(self):
        """Settings with more partitions than the topics have are set back, as no key has moved yet."""
        (problem,) = problems(FAMILY, grown("publish", 3))
        assert "set `partitions: 3` back" in problem.to_do

    def test_what_is_made_of_another_topic_is_made_anew(self):
        """A family that is derived from another topic is rebuilt with the number of partitions of that topic."""
        family = [spec._replace(derived_from="trades.sow") for spec in FAMILY]
        (problem,) = problems(family, grown("sow", 3))
        assert problem.what == "has 3 partitions, and trades.sow, which orders is made of, is to have 4"
        assert problem.to_do.startswith("make orders anew: (1) stop its workers; ")
        assert "(4) sowstream offsets adopt orders --from earliest --yes: trades.sow is read" in problem.to_do

    def test_what_is_made_of_it_is_told_of(self):
        """The families that are derived from a topic appear in its steps: a new name is a new underlying."""
        family = [spec._replace(derived_families=("slow", "big")) for spec in FAMILY]
        (problem,) = problems(family, grown("sow", 5))
        assert "(4) name orders_5 as the `underlying` of slow and big" in problem.to_do


def grown(role: Role, partitions: int) -> dict[str, ActualTopic]:
    """The problems of a family with another number of partitions in one topic."""
    name = f"orders.{role}"
    return AS_IT_SHOULD_BE | {name: AS_IT_SHOULD_BE[name]._replace(partitions=partitions)}


class TestCopies:
    """Committed records survive the loss of a broker."""

    def test_a_broker_alone_is_never_refused(self):
        """A single broker is never refused, as on a laptop there can be no second copy."""
        assert problems(FAMILY, AS_IT_SHOULD_BE, brokers=1) == []

    @pytest.mark.parametrize("role", ["publish", "sow", "delta", "ack", "mark", "dlq"])
    def test_one_copy_among_several_brokers_is_refused(self, role: Role):
        """A topic with one copy on several brokers is refused in each role: its records are lost with the broker."""
        family = durably()
        family[f"orders.{role}"] = family[f"orders.{role}"]._replace(replicas=1)
        (problem,) = problems(FAMILY, family, brokers=3)
        assert (problem.severity, problem.topic) == ("refuse", f"orders.{role}")
        assert "allow_one_replica" in problem.to_do
        (accepted,) = problems(allowing("one_replica"), family, brokers=3)
        assert (accepted.severity, "allow_one_replica" in accepted.to_do) == ("warn", False)

    @pytest.mark.parametrize(
        ("replicas", "settings", "what", "to_do"),
        [
            (3, {"min_insync_replicas": "1"}, "lost if that one is", "min.insync.replicas=2"),
            (3, {"min_insync_replicas": "3"}, "nothing can be written", "min.insync.replicas=2"),
            (2, {"min_insync_replicas": "2"}, "nothing can be written", "three copies"),
            (3, {"unclean_leader_election_enable": "true"}, "committed records go", "enable=false"),
        ],
        ids=str,
    )
    def test_what_takes_a_second_fault_is_a_warning(self, replicas, settings, what, to_do):
        """A setting that loses records only after a second fault is a warning."""
        family = durably() | {
            "orders.sow": changed("sow", replicas, **{"min_insync_replicas": "2"} | settings)["orders.sow"]
        }
        (problem,) = problems(FAMILY, family, brokers=3)
        assert (problem.severity, problem.topic) == ("warn", "orders.sow")
        assert what in problem.what
        assert to_do in problem.to_do

    def test_new_topics_have_as_many_copies_as_there_are_brokers_up_to_three(self):
        """New topics have up to three copies, of which two must have a record; the user's settings have priority."""
        assert [copies(brokers) for brokers in (1, 2, 3, 5)] == [1, 2, 3, 3]
        for brokers in (1, 2, 3, 5):
            made = {spec.name: ActualTopic(4, spec.config, copies(brokers)) for spec in durable(FAMILY, brokers)}
            assert problems(FAMILY, made, brokers=brokers) == []
        own = family_specs("orders", ("sow",), partitions=4, settings={"min.insync.replicas": "3"})
        assert durable(own, 3) == own

    def test_kafkas_own_topics_are_looked_at_too(self):
        """Problems of Kafka's own topics are warnings: their copies are the operator's."""
        well = ActualTopic(50, {"min.insync.replicas": "2"}, 3)
        alone = well._replace(replicas=1)
        assert internal_problems({"__transaction_state": alone, "__consumer_offsets": alone}, 1) == []
        assert internal_problems({"__transaction_state": well, "__consumer_offsets": well}, 3) == []
        lost, weak = internal_problems(
            {"__transaction_state": ActualTopic(50, {"min.insync.replicas": "1"}, 3), "__consumer_offsets": alone}, 3
        )[::-1]
        assert (lost.severity, weak.severity) == ("warn", "warn")
        assert "offsets.topic.replication.factor" in lost.to_do
        assert "min.insync.replicas=2" in weak.to_do


def durably() -> dict[str, ActualTopic]:
    """The family as it is created on three brokers."""
    return {spec.name: ActualTopic(4, spec.config, 3) for spec in durable(FAMILY, 3)}


class TestRetention:
    """Records that are kept too short are warnings, and never refused."""

    @pytest.mark.parametrize(
        ("role", "settings", "what"),
        [
            ("publish", {"retention_ms": "3600000"}, "keeps records for 1 hour: a worker that is down for longer"),
            ("publish", {"retention_bytes": "1200000000"}, "1,200,000,000 bytes of a partition, 20 minutes of 1 MB/s"),
            ("delta", {"retention_ms": "60000"}, "keeps records for 1 minute: a subscriber that was away"),
            ("dlq", {"retention_ms": "60000"}, "before anybody has looked"),
            ("sow", {"min_compaction_lag_ms": "0"}, "compacted after 0 ms: a snapshot that takes longer"),
            ("sow", {"delete_retention_ms": "1000"}, "deleted records come back in a restore"),
            ("sow", {"delete_retention_ms": "3600000"}, "down for longer restores everything"),
            ("sow", {"segment_ms": "2592000000"}, "segment.ms is 30 days: every restore"),
            ("sow", {"min_compaction_lag_ms": "2592000000"}, "min.compaction.lag.ms is 30 days: every restore"),
        ],
        ids=str,
    )
    def test_each_is_told_with_what_it_means(self, role, settings, what):
        """Each retention that is too short leads to one warning, with the time in it."""
        (problem,) = with_setting(role, **settings)
        assert (problem.severity, problem.topic) == ("warn", f"orders.{role}")
        assert what in problem.what

    def test_what_is_kept_for_ever_is_kept_long_enough(self):
        """A retention of -1 is unlimited, and no problem."""
        for role in ("publish", "delta", "dlq", "mark"):
            assert with_setting(role, retention_ms="-1") == []

    def test_how_long_a_record_is_there_for_sure(self):
        """A record is kept until it is deleted or compacted, whichever may come first; None is for ever."""
        spec = FAMILY[ROLES.index("publish")]
        assert kept_ms(spec, ActualTopic(1, {"cleanup.policy": "delete", "retention.ms": "5"})) == 5
        assert kept_ms(spec, ActualTopic(1, {"cleanup.policy": "delete", "retention.ms": "-1"})) is None
        both = {"cleanup.policy": "compact,delete", "retention.ms": "5", "min.compaction.lag.ms": "3"}
        assert kept_ms(spec, ActualTopic(1, both)) == 3
        assert kept_ms(spec, ActualTopic(1, {})) == 7 * DAY_MS

    def test_the_input_of_copies_and_views_is_there_for_ever(self):
        """From a SOW topic or a view's table compaction takes superseded records alone, which no reader needs."""
        config = Config(
            topics={"orders": {}},
            conflated={"orders_5s": {"underlying": "orders"}},
            views={"by": {"underlying": "orders", "group_by": ["/desk"], "fields": {"/n": "COUNT(*)"}}},
        )
        sources = [source_spec(pipeline) for pipeline in pipelines(config, [])]
        kept = {spec.name: kept_ms(spec, ActualTopic(4, dict(spec.config))) for spec in sources}
        assert kept == {"orders.publish": 7 * DAY_MS, "orders.sow": None, "by.parts": None}

    @pytest.mark.parametrize(
        ("ms", "said"),
        [(20, "20 ms"), (1000, "1 second"), (90_000, "90 seconds"), (DAY_MS, "1 day"), (36 * 3_600_000, "36 hours")],
    )
    def test_times_are_told_as_people_say_them(self, ms: int, said: str):
        """A duration is shown in the largest unit of which it has two or more, or exactly one."""
        assert duration(ms) == said


class TestChanges:
    """Changes of topics under a running worker."""

    def test_nothing_has_changed(self):
        """Other settings are no change, and neither are other topics."""
        assert (
            changes(FAMILY, AS_IT_SHOULD_BE, changed("publish", retention_ms="1") | {"other": ActualTopic(9, {})}) == []
        )

    def test_a_count_that_grew_is_refused_as_at_the_start(self):
        """A number of partitions that has grown is refused with the same remedy as at the start."""
        assert changes(FAMILY, AS_IT_SHOULD_BE, grown("publish", 5)) == problems(FAMILY, grown("publish", 5))

    @pytest.mark.parametrize("role", ["publish", "sow", "delta", "ack", "mark", "dlq"])
    def test_a_topic_that_is_gone_is_refused(self, role: Role):
        """A topic that was deleted is refused in each role."""
        without = {name: topic for name, topic in AS_IT_SHOULD_BE.items() if name != f"orders.{role}"}
        (problem,) = changes(FAMILY, AS_IT_SHOULD_BE, without)
        assert (problem.severity, problem.topic, problem.what) == ("refuse", f"orders.{role}", "was deleted")

    @pytest.mark.parametrize(
        ("role", "severity"), [("publish", "refuse"), ("sow", "refuse"), ("delta", "warn"), ("dlq", "warn")]
    )
    def test_a_topic_made_anew_is_another_topic(self, role: Role, severity: str):
        """A recreated topic stops the worker if records or offsets are lost with it; otherwise it is a warning."""
        before = {name: topic._replace(topic_id=name) for name, topic in AS_IT_SHOULD_BE.items()}
        now = before | {f"orders.{role}": before[f"orders.{role}"]._replace(topic_id="new")}
        (problem,) = changes(FAMILY, before, now)
        assert (problem.severity, problem.topic) == (severity, f"orders.{role}")
        assert "made anew" in problem.what

    def test_how_to_rebuild_the_records_is_told(self):
        """The remedy has the steps that rebuild the records from the input."""
        (problem,) = changes(
            FAMILY, {"orders.sow": AS_IT_SHOULD_BE["orders.sow"]._replace(topic_id="old")}, AS_IT_SHOULD_BE
        )
        assert "sowstream offsets adopt orders --from earliest" in problem.to_do
        assert "sowstream topics apply" in problem.to_do

    @pytest.mark.parametrize("is_there", [True, False], ids=["made anew", "deleted"])
    def test_what_is_made_of_lost_records_is_made_anew_too(self, is_there: bool):
        """Families derived from a topic that lost its records are rebuilt, too: they still have the former ones."""
        family = [spec._replace(derived_families=("slow",) if spec.role == "sow" else ()) for spec in FAMILY]
        before = {name: topic._replace(topic_id=name) for name, topic in AS_IT_SHOULD_BE.items()}
        now = dict(before)
        lost = now.pop("orders.sow")
        if is_there:
            now["orders.sow"] = lost._replace(topic_id="new")
        (problem,) = changes(family, before, now)
        assert "; then make slow anew: (1)" in problem.to_do


def test_the_control_topic_is_compacted_and_has_one_partition():
    """Problems of the control topic are warnings: workers run without it."""
    spec = control_spec()
    assert control_problems(spec, ActualTopic(1, spec.config)) == []
    (missing,) = control_problems(spec, None)
    assert (missing.severity, missing.to_do) == ("warn", "sowstream topics apply")
    deleted, many = control_problems(spec, ActualTopic(3, spec.config | {"cleanup.policy": "delete"}))
    assert deleted.to_do.endswith("--entity-name _sowstream.control --add-config cleanup.policy=compact")
    assert many.what == "has 3 partitions: only the first one is used"
    (alone,) = control_problems(spec, ActualTopic(1, spec.config), brokers=3)
    assert alone.severity == "warn"


def test_a_topic_that_is_hidden_is_not_called_missing() -> None:
    """Without the right to Describe a topic may exist; without DescribeConfigs its settings cannot be checked."""
    (hidden,) = problems(FAMILY, AS_IT_SHOULD_BE | {"orders.sow": ActualTopic(0, {}, lacks="Describe")})
    assert (hidden.severity, "no right to Describe" in hidden.what) == ("refuse", True)
    assert "does not exist" not in hidden.what
    (unseen,) = problems(FAMILY, AS_IT_SHOULD_BE | {"orders.sow": ActualTopic(4, {}, lacks="DescribeConfigs")})
    assert (unseen.severity, "DescribeConfigs" in unseen.to_do) == ("refuse", True)
