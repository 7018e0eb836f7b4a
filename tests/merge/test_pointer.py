"""JSON Pointers: RFC 6901's spelling, and applying what they name."""

import pytest

from processor.merge.apply import apply_delta
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
def test_a_pointer_is_read_and_written_as_the_rfc_says(pointer, path):
    """The RFC's examples, both ways."""
    assert names(pointer) == path
    built = ""
    for name in path:
        built = child(built, name)
    assert built == pointer


@pytest.mark.parametrize("pointer", ["a", "a/b", "#/a", "/~", "/a~2b", "/~~1"])
def test_what_is_no_pointer_is_refused(pointer):
    """A pointer starts with / and escapes with ~0 and ~1 only."""
    with pytest.raises(ValueError, match="is not a JSON Pointer"):
        names(pointer)


def test_applying_ignores_removed_paths_that_are_not_there():
    """A reader that missed something is not stopped by it."""
    assert apply_delta({"a": 1, "s": "x"}, {}, ["/b", "/s/t", "/b/c"]) == {"a": 1, "s": "x"}


def test_applying_copies_the_objects_of_a_delta():
    """The record grows on its own: a delta that a caller holds does not change with the next one."""
    delta = {"a": {"b": {"c": 1}}}
    record = apply_delta(None, delta)
    apply_delta(record, {"a": {"b": {"c": 2}}})
    assert delta == {"a": {"b": {"c": 1}}}
    assert record == {"a": {"b": {"c": 2}}}
