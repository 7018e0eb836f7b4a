"""The problems of the topics that all families share."""

from __future__ import annotations

from processor.topics import ActualTopic, control_problems, directory_problems
from processor.topics.family import control_spec, directory_spec


def test_a_hidden_shared_topic_is_not_called_missing():
    """A user without the right to see the topic directory or the control topic learns which right is missing."""
    hidden = ActualTopic(0, {}, lacks="Describe")
    problems = [*directory_problems(directory_spec(""), hidden), *control_problems(control_spec(""), hidden)]
    assert [problem.topic for problem in problems] == ["_sowstream.topics", "_sowstream.control"]
    for problem in problems:
        assert problem.severity == "warn"
        assert problem.what == "is not to be seen by this user (no right to Describe), if it exists"
        assert problem.to_do.startswith("grant Describe")


def test_a_shared_topic_with_hidden_settings_is_not_judged_by_them():
    """Without the right to read its settings, nothing is said about its cleanup policy."""
    hidden = ActualTopic(1, {}, lacks="DescribeConfigs")
    (problem,) = control_problems(control_spec(""), hidden)
    assert "no right to DescribeConfigs" in problem.what
