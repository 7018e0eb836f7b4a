import pytest

from processor.client.options import Options, parse_options
from processor.errors import ConfigurationError


def test_names_separated_by_commas():
    """Options are read as AMPS spells them, spaces aside; none at all is the usual case."""
    assert parse_options("oof, no_empties,timestamp", live=True, delta=True) == Options(
        oof=True, no_empties=True, timestamp=True
    )
    assert parse_options(None, live=True, delta=False) == parse_options("", live=True, delta=False) == Options()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("conflation=500ms", "'conflation' is not supported yet"),
        ("oof,conflation_key=[/a,/b]", "'conflation_key' is not supported yet"),
        ("select=[-/,+/id]", "'select' is not supported yet"),
        ("bookmark=now", "'bookmark' is not supported yet"),
        ("no_empty", "did you mean 'no_empties'"),
        ("oof=yes", "takes no value"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, said: str):
    """An option that is unknown or not there yet is an error that names it, never ignored."""
    with pytest.raises(ConfigurationError, match=said):
        parse_options(text, live=True, delta=True)


def test_options_of_other_forms_are_refused():
    """Options of deltas are refused for whole records, and `oof` for a snapshot."""
    with pytest.raises(ConfigurationError, match="for delta subscriptions"):
        parse_options("no_empties", live=True, delta=False)
    with pytest.raises(ConfigurationError, match="nothing leaves it"):
        parse_options("oof", live=False, delta=False)
