"""The files for contributors agree with the build."""

import os
import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_hooks_run_the_tools_of_make_lint():
    """Each tool that `make lint` runs is a hook of .pre-commit-config.yaml."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = " ".join(hook["entry"] for repo in config["repos"] for hook in repo["hooks"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [recipe] = re.findall(r"^lint: .*\n\t.*for check in (.*); do", makefile, re.MULTILINE)
    tools = [" ".join(tool.split()[:2]).removesuffix(" .") for tool in shlex.split(recipe)]
    assert len(tools) == 4
    assert [tool for tool in tools if f".venv/bin/{tool}" not in hooks] == []


def test_the_workflow_runs_the_gate_on_every_supported_python():
    """The workflow calls .ci/run with each Python of the classifiers, and with a newer one that may fail."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["all"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert job["strategy"]["matrix"]["python"] == [*supported, "3.14"]
    assert "3.14" in job["continue-on-error"]
    step = job["steps"][-1]
    assert step["run"] == ".ci/run"
    assert step["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_make_target_is_documented_in_its_help():
    """Each public target of the Makefile has a help line."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    helped = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert set(phony.split()) == helped
