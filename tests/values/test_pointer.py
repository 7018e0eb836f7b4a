"""JSON Pointers follow RFC 6901, and deltas are applied by them."""

import pytest

from processor.merge.delta import apply_delta
from processor.values.pointer import child, names


@pytest.mark.parametrize(
    ("pointer", "path"),
    [
        ("", ()),
        ("/", ("",)),
        ("/foo/0", ("foo", "0")),
        ("/a~1b", ("a/b",)),
        ("/m~0n", ("m~n",)),
        ("/~01", ("~1",)),
        ("/c%d", ("c%d",)),
        ("/ ", (" ",)),
        ("/a//b", ("a", "", "b")),
    ],
)
def test_a_pointer_is_read_and_written_as_in_the_rfc(pointer, path):
    """The examples of RFC 6901 are read and written."""
    assert names(pointer) == path
    built = ""
    for name in path:
        built = child(built, name)
    assert built == pointer


@pytest.mark.parametrize("pointer", ["a", "a/b", "#/a", "/~", "/a~2b", "/~~1"])
def test_an_invalid_pointer_is_refused(pointer):
    """A text that does not start with / or has escapes other than ~0 and ~1 is refused."""
    with pytest.raises(ValueError, match="is not a JSON Pointer"):
        names(pointer)


def test_applying_ignores_removed_paths_that_are_not_there():
    """Removed paths that do not exist are ignored, so a reader that missed an update can go on."""
    assert apply_delta({"a": 1, "s": "x"}, {}, ["/b", "/s/t", "/b/c"]) == {"a": 1, "s": "x"}


def test_applying_copies_the_objects_of_a_delta():
    """Applying a delta copies its objects, so a later delta does not change the one that a caller holds."""
    delta = {"a": {"b": {"c": 1}}}
    record = apply_delta(None, delta)
    apply_delta(record, {"a": {"b": {"c": 2}}})
    assert delta == {"a": {"b": {"c": 1}}}
    assert record == {"a": {"b": {"c": 2}}}
