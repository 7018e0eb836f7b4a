"""The settings: their sources, their errors, and the secrets that are hidden."""

import json

import pytest
import yaml
from pydantic import ValidationError

from processor.config import Config, TopicConfig, load
from processor.config.config import misspelt
from processor.errors import ConfigurationError
from processor.topics.family import MESSAGE_MAX_BYTES
from processor.wire.command import KEY_BYTES_MAX, PASSED_BYTES_MAX
from processor.wire.record_headers import REMOVED_BYTES_MAX


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A test without a settings file, and with no environment but its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOWSTREAM_STATE_DIR", raising=False)


def loaded(tmp_path, tree, **flags) -> Config:
    """The settings of a file with this text."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return load(file, **flags)


def refused(tmp_path, tree) -> str:
    """The error for a file with this text."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, tree)
    return str(caught.value)


class TestSources:
    """Settings come from the file, then the environment, then flags; the later one has priority."""

    def test_without_any_the_defaults_hold(self):
        """Without settings the defaults are a broker on this machine, and nothing to run."""
        config = load()
        assert config.kafka == {"bootstrap.servers": "localhost:9092"}
        assert (config.application_id, config.topics) == ("sowstream", {})

    def test_a_file_of_the_usual_name_is_read_unasked(self, tmp_path):
        """A file of the usual name in the present directory is read."""
        (tmp_path / "sowstream.yaml").write_text("application_id: here\n")
        assert load().application_id == "here"

    def test_an_empty_file_changes_nothing(self, tmp_path):
        """An empty file is allowed, and changes nothing."""
        assert loaded(tmp_path, "# nothing yet\n") == load()

    @pytest.mark.parametrize("address", ["SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS", "SOWSTREAM_KAFKA__BOOTSTRAP_SERVERS"])
    def test_the_environment_beats_the_file_setting_by_setting(self, tmp_path, monkeypatch, address):
        """The environment replaces single settings, also within a section; the others stay as in the file."""
        monkeypatch.setenv("SOWSTREAM_APPLICATION_ID", "environment")
        monkeypatch.setenv("SOWSTREAM_RUNTIME__COMMIT_INTERVAL_S", "500ms")
        monkeypatch.setenv("SOWSTREAM_TOPICS__orders__PARTITIONS", "9")
        monkeypatch.setenv(address, "environment:1")
        config = loaded(
            tmp_path,
            {
                "application_id": "file",
                "state_dir": "/file",
                "runtime": {"commit_interval_s": 1, "batch_records_max": 7},
                "topics": {"orders": {"partitions": 2, "key": ["/a"]}},
                "kafka": {"bootstrap.servers": "file:1", "client.id": "file"},
            },
        )
        assert (config.application_id, str(config.state_dir)) == ("environment", "/file")
        assert (config.runtime.commit_interval_s, config.runtime.batch_records_max) == (0.5, 7)
        assert (config.topics["orders"].partitions, config.topics["orders"].key) == (9, ("/a",))
        assert config.kafka == {"bootstrap.servers": "environment:1", "client.id": "file"}

    def test_a_variable_finds_a_topic_whose_name_has_capitals(self, tmp_path, monkeypatch):
        """Variables are read in small letters: one of a written name is that topic, and not a second one."""
        monkeypatch.setenv("SOWSTREAM_TOPICS__ORDERS__NULL_POLICY", "remove")
        config = loaded(tmp_path, {"topics": {"Orders": {"partitions": 2}, "other": {}}})
        assert {name: topic.null_policy for name, topic in config.topics.items()} == {
            "Orders": "remove",
            "other": "ignore",
        }
        small = loaded(tmp_path, {"topics": {"Orders": {}, "orders": {}}})
        assert [small.topics[name].null_policy for name in ("Orders", "orders")] == ["ignore", "remove"]
        with pytest.raises(ConfigurationError, match=r"topics\.orders may be ORDERS or Orders"):
            loaded(tmp_path, {"topics": {"Orders": {}, "ORDERS": {}}})

    def test_a_preset_and_a_key_of_the_environment_are_as_those_of_the_file(self, tmp_path, monkeypatch):
        """The environment may set a preset, and a key as `explicit` or as JSON; the file has priority over a preset."""
        monkeypatch.setenv("SOWSTREAM_TOPICS__orders__PRESET", "um")
        monkeypatch.setenv("SOWSTREAM_TOPICS__orders__KEY", "explicit")
        monkeypatch.setenv("SOWSTREAM_TOPICS__others__KEY", '["/a", "/b"]')
        config = loaded(tmp_path, {"topics": {"orders": {"merge_depth": 3}}})
        orders = config.topics["orders"]
        assert (orders.key, orders.key_fields) == (("explicit",), ())
        assert (orders.merge_depth, orders.null_policy, orders.default_command) == (3, "set", "publish")
        assert config.topics["others"].key == ("/a", "/b")
        monkeypatch.setenv("SOWSTREAM_TOPICS__orders__KEY", "[/a")
        with pytest.raises(ConfigurationError, match=r"topics\.orders\.key: "):
            load()

    def test_a_variable_with_dots_beats_one_without(self, monkeypatch):
        """Both spellings of one of Kafka's properties: the exact one counts, in any order."""
        monkeypatch.setenv("SOWSTREAM_KAFKA__CLIENT.ID", "exact")
        monkeypatch.setenv("SOWSTREAM_KAFKA__CLIENT_ID", "for shells")
        monkeypatch.setenv("SOWSTREAM_SCHEMA_REGISTRY__BASIC_AUTH_USER_INFO", "me:secret")
        config = load()
        assert config.kafka["client.id"] == "exact"
        assert config.schema_registry == {"basic.auth.user.info": "me:secret"}

    def test_flags_beat_the_environment(self, tmp_path, monkeypatch):
        """Flags have priority over the environment, and leave the other properties alone."""
        monkeypatch.setenv("SOWSTREAM_STATE_DIR", "/environment")
        monkeypatch.setenv("SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS", "environment:1")
        tree = {"kafka": {"client.id": "file"}}
        config = loaded(tmp_path, tree, bootstrap="flag:1", state_dir=tmp_path / "flag")
        assert config.kafka == {"bootstrap.servers": "flag:1", "client.id": "file"}
        assert config.state_dir == tmp_path / "flag"

    def test_numbers_and_truths_are_text_where_kafka_wants_text(self, tmp_path):
        """Numbers and booleans, as YAML reads them, become text for Kafka."""
        properties = {"enable.idempotence": True, "linger.ms": 5}
        config = loaded(
            tmp_path, {"kafka": properties, "topics": {"orders": {"config": {"retention.ms": 1, "x": False}}}}
        )
        assert config.kafka == {"bootstrap.servers": "localhost:9092", "enable.idempotence": "true", "linger.ms": "5"}
        assert config.topics["orders"].config == {"retention.ms": "1", "x": "false"}

    def test_settings_do_not_change(self):
        """Settings are immutable once they are read."""
        with pytest.raises(ValidationError, match="frozen"):
            load().application_id = "other"


class TestErrors:
    """Each error is one line: the place, the problem, and a suggestion."""

    @pytest.mark.parametrize(
        ("tree", "message"),
        [
            (
                {"gateway": {"tick_s": 0.1}},
                "gateway.tick_s: no setting any more; it is always 20 ms; remove the line",
            ),
            ({"topcs": {}}, "topcs: there is no setting 'topcs'; did you mean 'topics'?"),
            (
                {"topics": {"orders": {"partition": 3}}},
                "topics.orders.partition: there is no setting 'partition'; did you mean 'partitions'?",
            ),
            (
                {"topics": {"partitions": {"keys": ["/id"]}}},
                "topics.partitions.keys: there is no setting 'keys'; did you mean 'key'?",
            ),
            (
                {"runtime": {"metric_port": 1}},
                "runtime.metric_port: there is no setting 'metric_port'; did you mean 'metrics_port'?",
            ),
            (
                {"conflated": {"c": {"zzz": 1}}},
                "conflated.c.zzz: there is no setting 'zzz'; known: ceiling, filter, floor, interval, kafka_topics, ",
            ),
            ({"topics": {"a.b": {}}}, "topics.a.b: expected a name of up to 200 letters, digits, _ and -"),
            (
                {"topics": {"orders": {"partitions": 0}}},
                "topics.orders.partitions: Input should be greater than or equal to 1",
            ),
            ({"topics": {"orders": {"key": []}}}, "topics.orders.key: key needs at least one path such as /id"),
            ({"topics": {"orders": {"key": ["id"]}}}, "topics.orders.key: 'id' is no path; write /id"),
            ({"guarantee": "at_most_once"}, "guarantee: Input should be 'exactly_once' or 'at_least_once'"),
            (
                {"runtime": {"commit_interval_s": 6, "transaction_timeout_s": 10}},
                "runtime: commit_interval_s must be at most half of transaction_timeout_s",
            ),
            ({"topics": {"a": {}}, "conflated": {"a": {"underlying": "a"}}}, "\n  'a' is configured twice"),
            ({"topics": {"orders": None}}, "topics.orders: expected settings, each `name: value`, or {} for none"),
            ({"kafka": "localhost:9092"}, "kafka: expected settings, each `name: value`, or {} for none"),
            ({"topics": {"orders": {"key": "/id"}}}, "topics.orders.key: expected a list, such as [/id]"),
        ],
        ids=str,
    )
    def test_a_wrong_setting_is_reported_with_its_place(self, tmp_path, tree, message):
        """A wrong setting is reported with its file and its place."""
        error = refused(tmp_path, tree)
        assert error.startswith(f"{tmp_path / 'sowstream.yaml'}: settings that cannot be used:\n  ")
        assert message in error

    def test_all_errors_are_reported_at_once(self, tmp_path):
        """All errors are reported at once, a line for each."""
        error = refused(tmp_path, {"topcs": {}, "runtime": {"metrics_port": -1}, "guarantee": "none"})
        assert len(error.splitlines()) == 4

    def test_a_wrong_setting_of_the_environment_is_reported(self, monkeypatch):
        """A wrong setting of the environment is reported with that source."""
        monkeypatch.setenv("SOWSTREAM_RUNTIME__BATCH_RECORDS_MAX", "none")
        with pytest.raises(
            ConfigurationError, match=r"the environment: .*\n  runtime.batch_records_max: Input should be"
        ):
            load()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("topics: [", "not YAML: expected the node content, but found '<stream end>', in line 1, column 10"),
            ("{ a: b, [c\n", "not YAML: expected ',' or ']', but got '<stream end>', in line 2, column 1"),
            ("topics:\n\torders: {}\n", "not YAML: a tab stands where it takes spaces, in line 2, column 1"),
            ("topics: \x00", "not YAML: special characters are not allowed, at character 9"),
            ("- a\n", "expected settings such as `topics:` at the top level"),
            ("7", "expected settings"),
            ("topics: {}\nkafka: {}\ntopics: {a: {}}\n", "'topics' stands here and in line 1"),
            ("topics:\n  a: {}\n  b: {}\n  a: {partitions: 2}\n", "'a' stands here and in line 2"),
            ("1: 2", "expected settings"),
        ],
    )
    def test_a_file_without_settings_is_reported(self, tmp_path, text, message):
        """A file that is not YAML, or not a tree of settings, is reported with the expectation or the place."""
        assert message in refused(tmp_path, text)

    @pytest.mark.parametrize(
        "line",
        [
            "sasl.password: hunter2: x",
            "sasl.password: 'hunter2",
            'sasl.password: "hunter2',
            'sasl.password: "hunter2\\q hunter2"',
            "sasl.password: *hunter2",
            "sasl.password: !hunter2 x",
            "sasl.password: {hunter2",
            "sasl.password: [hunter2",
            "sasl.password: hunter2\n\thunter2: x",
            "sasl.password: @hunter2",
            "sasl.password: `hunter2`",
            "sasl.password: %hunter2",
            "sasl.password: &hunter2 x\n  b: &hunter2 y\n  *hunter2",
            "sasl.password: hunter2\n  sasl.password: hunter2",
            "{sasl.password: hunter2, sasl.password: hunter2}",
            "sasl.password: |hunter2",
        ],
    )
    def test_an_error_in_the_line_of_a_password_does_not_show_it(self, tmp_path, line):
        """A YAML error has a line number, and not the text of the line, which may have a password."""
        message = refused(tmp_path, f"kafka:\n  {line}\n")
        assert "hunter2" not in message
        assert "in line " in message

    @pytest.mark.parametrize("name", [".", "..", "...", "a/b", "../a", "a\\b", "", "a\n"])
    def test_an_application_is_a_directory_inside_of_state_dir(self, tmp_path, name):
        """An application id that leads out of `state_dir` is refused, as local state is wiped there."""
        assert "application_id: " in refused(tmp_path, f"application_id: {json.dumps(name)}\n")
        assert loaded(tmp_path, "application_id: a..b\n").application_id == "a..b"

    def test_a_setting_of_a_merge_key_may_be_overridden(self, tmp_path):
        """A merge key of YAML may be overridden, as is its purpose."""
        text = "topics:\n  a: &a {partitions: 2, max_depth: 3}\n  b: {<<: *a, partitions: 5}\n"
        topics = loaded(tmp_path, text).topics
        assert (topics["b"].partitions, topics["b"].max_depth) == (5, 3)

    def test_a_file_that_is_no_text_is_reported(self, tmp_path):
        """A file that is not text is reported with the place, for a single letter in another encoding."""
        file = tmp_path / "latin.yaml"
        file.write_bytes("topics: {}  # für".encode("latin-1"))
        with pytest.raises(ConfigurationError, match=r"latin\.yaml: not UTF-8 text, from byte 15 on"):
            load(file)

    def test_a_section_of_the_environment_that_is_not_json_is_reported(self, monkeypatch):
        """A variable without `__` is a section as JSON; an error does not repeat its content."""
        monkeypatch.setenv("SOWSTREAM_KAFKA", "hunter2")
        with pytest.raises(ConfigurationError, match=r'"kafka".*a whole section is written as JSON') as refusal:
            load()
        assert "hunter2" not in str(refusal.value)

    def test_a_file_that_is_asked_for_has_to_be_there(self, tmp_path):
        """A file that is named must exist: a misspelt name must not start a worker with defaults."""
        with pytest.raises(ConfigurationError, match=r"nobody.yaml: No such.*file: Client\(NAME, FILE\)$"):
            load(tmp_path / "nobody.yaml")

    def test_no_value_is_repeated(self, tmp_path):
        """An error does not repeat the wrong value, which may be a password."""
        assert "hunter2" not in refused(tmp_path, {"kafka": {"sasl.password": ["hunter2"]}, "topics": "hunter2"})


def test_the_largest_record_fits_its_topics_with_the_longest_headers(tmp_path):
    """The largest record fits into its topics with the longest headers; Kafka would refuse it otherwise."""
    largest = TopicConfig(max_record_bytes=10_485_760).max_record_bytes
    assert largest + PASSED_BYTES_MAX + REMOVED_BYTES_MAX + KEY_BYTES_MAX + 16 * 1024 < MESSAGE_MAX_BYTES
    error = refused(tmp_path, {"topics": {"orders": {"max_record_bytes": largest + 1}}})
    assert "topics.orders.max_record_bytes: Input should be less than or equal to 10485760" in error


class TestIntervals:
    """An interval is `500ms`, `5s`, `1m`, `1h` or a number of seconds."""

    @pytest.mark.parametrize(
        ("written", "seconds"),
        [
            ("500ms", 0.5),
            ("5s", 5),
            ("1m", 60),
            ("1h", 3600),
            ("1.5 s", 1.5),
            ("  2m ", 120),
            ("7", 7),
            (7, 7),
            (0.25, 0.25),
        ],
    )
    def test_every_way_to_write_one_is_read(self, written, seconds):
        """An interval may have a unit or none, and a fraction."""
        config = Config(topics={"a": {}}, conflated={"c": {"underlying": "a", "interval": written}})
        assert config.conflated["c"].interval == pytest.approx(seconds)

    @pytest.mark.parametrize("written", ["5 sec", "fast", "", "-1s", "1s 500ms", "s"])
    def test_other_texts_are_refused_with_the_valid_forms(self, written):
        """Any other text is refused with the ways to write an interval."""
        with pytest.raises(ValidationError, match="is not an interval; write 500ms, 5s, 1m or 1h"):
            Config(topics={"a": {}}, conflated={"c": {"underlying": "a", "interval": written}})

    @pytest.mark.parametrize("written", ["99ms", 0, -1, float("nan"), float("inf"), "0.09s"])
    def test_a_conflated_topic_waits_a_tenth_of_a_second_at_least(self, written):
        """A conflated topic's interval is at least 100 ms; shorter ones and other texts are refused."""
        with pytest.raises(ValidationError, match="interval"):
            Config(topics={"a": {}}, conflated={"c": {"underlying": "a", "interval": written}})


class TestAutoInterval:
    """`interval: auto` lies between a floor and a ceiling."""

    def test_a_fixed_interval_has_no_range(self):
        """A fixed interval has equal bounds."""
        config = Config(topics={"a": {}}, conflated={"c": {"underlying": "a", "interval": "250ms"}})
        assert config.conflated["c"].interval_range_ms == (250, 250)

    @pytest.mark.parametrize(
        ("bounds", "range_ms"),
        [({}, (100, 5000)), ({"floor": "1s"}, (1000, 5000)), ({"floor": "1s", "ceiling": "1m"}, (1000, 60_000))],
    )
    def test_auto_has_a_range(self, bounds, range_ms):
        """`auto` has a range, by default from a tenth of a second to five seconds."""
        config = Config(topics={"a": {}}, conflated={"c": {"underlying": "a", "interval": "auto", **bounds}})
        assert config.conflated["c"].interval_range_ms == range_ms

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"interval": "auto", "floor": "50ms"}, "greater than or equal to 0.1"),
            ({"interval": "auto", "floor": "2s", "ceiling": "1s"}, "floor is longer than ceiling"),
            ({"interval": "1s", "ceiling": "2s"}, "ceiling is for `interval: auto`; remove it, or set that"),
            ({"floor": "2s"}, "floor is for `interval: auto`; remove it, or set that"),
        ],
    )
    def test_an_impossible_range_is_refused(self, settings, message):
        """An impossible range is refused, and not silently ignored."""
        with pytest.raises(ValidationError, match=message):
            Config(topics={"a": {}}, conflated={"c": {"underlying": "a", **settings}})


def copies(**underlying) -> dict[str, object]:
    """Settings with conflated topics over one another."""
    return {"conflated": {name: {"underlying": under} for name, under in underlying.items()}}


class TestUnderlying:
    """Every chain of conflated topics ends at a topic with records of its own."""

    def test_a_copy_has_the_records_of_the_topic_at_the_bottom(self):
        """A copy has the records of the topic at the bottom of its chain, which may be a processor's."""
        config = Config(
            topics={"orders": {"key": ["/n"]}},
            processors={"view": {"use": "v", "underlying": "c"}, "maker": {"use": "m", "topic": {"key": ["/m"]}}},
            **copies(b="orders", c="b", d="view", e="maker"),
        )
        assert {name: config.topic(name).key for name in "bcde"} == {
            "b": ("/n",),
            "c": ("/n",),
            "d": ("/n",),
            "e": ("/m",),
        }
        assert config.topic("orders") is config.topics["orders"]

    @pytest.mark.parametrize(
        ("tree", "message"),
        [
            (copies(a="a"), "underlying topics go in a circle: a → a"),
            (copies(a="b", b="c", c="b"), "underlying topics go in a circle: a → b → c → b"),
            (copies(a="b", b="c", c="a"), "underlying topics go in a circle: a → b → c → a"),
            ({"processors": {"p": {"use": "v", "underlying": "p"}}}, "underlying topics go in a circle: p → p"),
            (
                {"processors": {"p": {"use": "v", "underlying": "a"}}} | copies(a="p"),
                "underlying topics go in a circle: a → p → a",
            ),
            (copies(a="orders"), "conflated.a.underlying: there is no topic 'orders'; known: a"),
            (copies(a="b", b="orders"), "conflated.b.underlying: there is no topic 'orders'; known: a, b"),
            (
                {"processors": {"p": {"use": "v", "underlying": "oders"}}, "topics": {"orders": {}}},
                "processors.p.underlying: there is no topic 'oders'; did you mean 'orders'?",
            ),
        ],
        ids=str,
    )
    def test_a_chain_that_ends_nowhere_is_refused(self, tmp_path, tree, message):
        """A chain without an end is refused before anything starts, with its names."""
        assert message in refused(tmp_path, tree)

    def test_an_unknown_topic_is_reported_with_a_suggestion(self):
        """An unknown topic is reported with a suggestion."""
        config = Config(topics={"orders": {}})
        with pytest.raises(ConfigurationError, match=r"there is no topic 'oders'; did you mean 'orders'\?"):
            config.topic("oders")
        with pytest.raises(ConfigurationError, match="there is no topic 'x'; known: orders"):
            config.topic("x")


class TestMovedTopics:
    """A topic that takes the place of another one."""

    @pytest.mark.parametrize(
        ("topics", "message"),
        [
            ({"orders": {}, "o": {"moved_from": "order"}}, r"topics\.o\.moved_from: .*'order'.*orders"),
            ({"a": {"moved_from": "b"}, "b": {"moved_from": "a"}}, "go in a circle: a → b → a"),
            ({"orders": {"key": ["/k"]}, "o": {"moved_from": "orders"}}, "key differs from that of 'orders'"),
            ({"orders": {"sow": False}, "o": {"sow": False, "moved_from": "orders"}}, "sow: false"),
            ({"orders": {}, "a": {"moved_from": "orders"}, "b": {"moved_from": "orders"}}, "'a' takes the place"),
        ],
        ids=["unknown", "circle", "another key", "no records", "two"],
    )
    def test_a_move_that_cannot_be_is_refused(self, topics, message):
        """The message names the setting and the reason."""
        with pytest.raises(ValueError, match=message):
            Config.model_validate({"topics": topics})

    def test_a_topic_may_move_more_than_once(self):
        """Each has one successor; settings of merging may differ."""
        c = {"moved_from": "b", "partitions": 24, "null_policy": "set"}
        config = Config.model_validate({"topics": {"a": {}, "b": {"moved_from": "a", "partitions": 12}, "c": c}})
        assert [config.successor(name) for name in "abc"] == ["b", "c", None]


def test_secrets_are_hidden_wherever_they_stand():
    """Secrets are hidden in Kafka's properties and in a plug-in's settings, at any depth; other values are shown."""
    secret = "hunter2"
    config = Config(
        kafka={
            "sasl.password": secret,
            "sasl.username": "me",
            "ssl.key.password": secret,
            "ssl.key.pem": secret,
            "sasl.jaas.config": f"password={secret}",
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.config": secret,
        },
        schema_registry={"url": f"http://alice:{secret}@host:8081", "basic.auth.user.info": f"alice:{secret}"},
        processors={"p": {"use": "v", "settings": {"url": "u", "api_token": secret, "users": [{"Password": secret}]}}},
    )
    shown = config.shown()
    assert secret not in str(shown)
    assert shown["kafka"]["sasl.username"] == "me"
    assert shown["kafka"]["sasl.password"] == "****"
    assert shown["processors"]["p"]["settings"]["url"] == "u"
    assert config.kafka["sasl.password"] == secret


def test_settings_that_differ_from_the_defaults_are_shown_alone():
    """A terminal gets the changed settings only, of sections and topics, too."""
    config = Config(topics={"orders": {"partitions": 8}}, runtime={"metrics_port": 9100})
    assert config.shown(changed_only=True) == {
        "topics": {"orders": {"partitions": 8}},
        "runtime": {"metrics_port": 9100},
    }


def test_secrets_that_are_no_texts_are_hidden_too():
    """Secrets that are numbers, lists or mappings, and those in addresses and headers, are hidden too."""
    values = {
        "password": 12345,
        "api_keys": ["a", 7],
        "urls": ["http://u:p@h/", "http://u:p@q@h/", "postgresql://u:p/q@h/db", "http://h/a@b", "http://u@h/"],
        "token": None,
        "passphrases": {"x": 1},
        "credentials": {"user": "svc", "login": [{"value": "p"}]},
        "db_pass": "p",
        "pwd": "p",
        "auth": "Basic p",
        "bypass": "yes",
    }
    config = Config(topics={"secrets": {"enrich": [{"use": "e", "settings": values}]}})
    shown = config.shown()["topics"]["secrets"]
    assert shown["enrich"][0]["settings"] == {
        "password": "****",
        "api_keys": ["****", "****"],
        "urls": ["http://****@h/", "http://****@h/", "postgresql://****@h/db", "http://h/a@b", "http://****@h/"],
        "token": None,
        "passphrases": {"x": "****"},
        "credentials": {"user": "****", "login": [{"value": "****"}]},
        "db_pass": "****",
        "pwd": "****",
        "auth": "****",
        "bypass": "yes",
    }
    assert shown["partitions"] == 4


def test_no_secret_is_in_a_repr():
    """The `repr` of the settings, as a notebook shows it, has no properties of clients and plug-ins."""
    step = {"use": "e", "settings": {"password": "hunter2"}}
    config = Config(
        kafka={"sasl.password": "hunter2"},
        schema_registry={"url": "http://u:hunter2@h/"},
        topics={"orders": {"enrich": [step]}},
    )
    assert "hunter2" not in repr(config)
    assert "use='e'" in repr(config)


class TestMisspelt:
    """Environment variables that resemble settings are reported if they are none."""

    @pytest.mark.parametrize(
        ("variable", "meant"),
        [
            ("SOWSTREAM_STATEDIR", "SOWSTREAM_STATE_DIR"),
            ("SOWSTREAM_RUNTIMES__METRICS_PORT", "SOWSTREAM_RUNTIME__METRICS_PORT"),
            ("SOWSTREAM_TOPCS__ORDERS__KEY", "SOWSTREAM_TOPICS__ORDERS__KEY"),
            ("SOWSTREAM_NONSENSE__KEY", ""),
        ],
    )
    def test_a_misspelt_variable_is_reported_with_the_closest_setting(self, variable: str, meant: str):
        """A misspelt variable is reported with the closest setting, as it would be ignored silently."""
        assert misspelt([variable], Config.model_fields) == {variable: meant}

    @pytest.mark.parametrize(
        "variable",
        [
            "SOWSTREAM_STATE_DIR",
            "sowstream_runtime__metrics_port",
            "SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS",
            "SOWSTREAM_KAFKA_JARS",
            "SOWSTREAM_CACHE",
            "SOWSTREAM_TEST_BOOTSTRAP",
            "SOWSTREAM_PORT_9090_TCP",
            "SOWSTREAM_SERVICE_HOST",
            "STATEDIR",
        ],
    )
    def test_other_variables_with_the_prefix_are_not_reported(self, variable: str):
        """Settings and variables of the broker, of tests and of Kubernetes services are not reported."""
        assert misspelt([variable], Config.model_fields) == {}
