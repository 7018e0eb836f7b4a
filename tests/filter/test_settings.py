"""Expressions in the settings that are over their budget are refused by `sowstream check`, with the place."""

import pytest
import yaml

from processor.cli.main import run

COSTLY = "LENGTH(REPLACE(REPLACE(REPLACE(/a, 'a', /b), 'b', /c), 'c', /d)) > 9"


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        (
            "conflated.slow.filter",
            {"conflated": {"slow": {"underlying": "orders", "interval": "1s", "filter": COSTLY}}},
        ),
        ("queues.work.filter", {"queues": {"work": {"underlying": "orders", "filter": COSTLY}}}),
        ("views.open.filter", {"views": {"open": {"underlying": "orders", "fields": {"/x": "/a"}, "filter": COSTLY}}}),
        ("/x", {"views": {"open": {"underlying": "orders", "fields": {"/x": COSTLY}}}}),
        ("/x", {"views": {"sums": {"underlying": "orders", "group_by": ["/a"], "fields": {"/x": f"SUM({COSTLY})"}}}}),
        ("/x", {"topics": {"orders": {"key": ["/id"], "enrich": {"/x": COSTLY}}}}),
        ("/x", {"topics": {"orders": {"key": ["/id"], "preprocess": {"/x": COSTLY}}}}),
    ],
)
def test_a_costly_expression_of_the_settings_is_refused_by_check(place, settings, tmp_path, capfd):
    """Filters and fields of copies, queues, views and rules are refused with the setting, the place and the reason."""
    tree = {"kafka": {"bootstrap.servers": "localhost:1"}, "topics": {"orders": {"key": ["/id"]}}} | settings
    file = tmp_path / "sowstream.yaml"
    file.write_text(yaml.safe_dump(tree))
    code = run(["check", str(file)])
    shown = " ".join(" ".join(capfd.readouterr()).split())
    assert code == 2, shown
    assert place in shown
    assert "line 1, column" in shown
    assert "up to here its functions make texts of" in shown
