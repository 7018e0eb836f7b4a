import pytest

from processor.client.outbox import Outbox
from processor.client.publishing import publishable
from processor.codec import load_codec
from processor.config import Config
from processor.errors import ConfigurationError, RecordRejected

CONFIG = Config.model_validate(
    {
        "topics": {"orders": {"key": ["/id"]}, "full": {"key": ["/a", "/b/c"], "default_command": "publish"}},
        "conflated": {"slow": {"underlying": "orders"}},
    }
)


def outbox(topic: str = "orders") -> Outbox:
    """The outbox of a configured topic."""
    return Outbox(topic, CONFIG.topic(topic), load_codec("json"))


def test_the_key_comes_from_the_body():
    """Without a key given, the key fields of the message make it; several make a JSON array of texts."""
    assert outbox().record("delta_publish", {"id": 7, "n": 1}, None, None) == (b"7", b'{"id":7,"n":1}', None)
    key, _, _ = outbox("full").record("publish", {"a": True, "b": {"c": "x"}}, None, None)
    assert key == b'["true","x"]'


def test_a_message_that_is_bytes_travels_as_it_is():
    """Bytes are sent byte for byte; they are parsed only where the key is not given."""
    assert outbox().record("delta_publish", b'{ "id" : "k" }', None, None) == (b"k", b'{ "id" : "k" }', None)
    assert outbox().record("delta_publish", b"not JSON", "k", None) == (b"k", b"not JSON", None)


def test_the_command_is_said_only_where_it_is_not_the_usual_one():
    """A topic's default command costs no header, and a tombstone says sow_delete by itself."""
    said = [("command", b"publish")]
    assert outbox().record("publish", {"id": 1}, None, None)[2] == said
    assert outbox().record("delta_publish", {"id": 1}, None, None)[2] is None
    assert outbox("full").record("publish", {"id": 1}, "k", None)[2] is None
    assert outbox("full").record("delta_publish", {"id": 1}, "k", None)[2] == [("command", b"delta_publish")]
    assert outbox().record("sow_delete", None, "k", None) == (b"k", None, None)


def test_headers_of_the_publisher_go_along():
    """More headers are sent as UTF-8; those that the worker writes are refused, `remove` is the publisher's."""
    given = {"correlation_id": "abc", "trace": "é", "remove": '["/x"]'}
    assert outbox().record("delta_publish", {"id": 1}, None, given)[2] == [
        ("correlation_id", b"abc"),
        ("trace", "é".encode()),
        ("remove", b'["/x"]'),
    ]
    for name in ("version", "command", "dlq_reason"):
        with pytest.raises(ConfigurationError, match=name):
            outbox().record("delta_publish", {"id": 1}, None, {name: "1"})


@pytest.mark.parametrize(
    ("data", "reason"),
    [({"n": 1}, "missing_key"), ([1], "not_an_object"), (b"{", "undecodable"), ({"id": 1, "x": {1}}, "undecodable")],
)
def test_what_has_no_key_or_no_form_is_rejected_here(data: object, reason: str):
    """Nothing is sent that could not be keyed or written; the reason is that of the dead-letter topic."""
    with pytest.raises(RecordRejected) as caught:
        outbox().record("delta_publish", data, None, None)
    assert caught.value.reason == reason


def test_only_a_sow_topic_is_published_to():
    """A topic that a worker makes of another is refused with the name of that other; an unknown one with a guess."""
    assert publishable(CONFIG, "orders") == CONFIG.topics["orders"]
    with pytest.raises(ConfigurationError, match="publish to 'orders'"):
        publishable(CONFIG, "slow")
    with pytest.raises(ConfigurationError, match="did you mean 'orders'"):
        publishable(CONFIG, "oders")
