"""Topics of every kind on a secured broker, the printed ACLs, and commands run as one of the principals."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from processor.config import Config, load
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.secured.secured_broker import Mechanism, SecuredBroker

_KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
_CLUSTER: Final = "kafka-cluster"
_OPERATIONS: Final = {
    operation.name.replace("_", "").lower(): operation for operation in AclOperation if operation.name != "UNKNOWN"
}
_EVERYTHING: Final = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
_COMMAND_S: Final = 120.0


class Acl(NamedTuple):
    """One ACL."""

    who: str
    """The principal, which is the role in lower case."""
    kind: str
    """The type of the resource, as an option of Kafka's tool: `topic`."""
    name: str
    """The resource."""
    is_prefix: bool
    """True if it applies to all names with this prefix."""
    operation: str
    """The operation, by Kafka's name: `DescribeConfigs`."""

    @property
    def binding(self) -> AclBinding:
        """The ACL as the administration client has it."""
        return AclBinding(*self._parts, AclPermissionType.ALLOW)

    @property
    def filter(self) -> AclBindingFilter:
        """Selects this ACL alone."""
        return AclBindingFilter(*self._parts, AclPermissionType.ALLOW)

    @property
    def _parts(self) -> tuple[Any, ...]:
        pattern = ResourcePatternType.PREFIXED if self.is_prefix else ResourcePatternType.LITERAL
        operation = _OPERATIONS[self.operation.lower()]
        return _KINDS[self.kind], self.name, pattern, f"User:{self.who}", "*", operation


def parse_acls(printed: str) -> list[Acl]:
    """The ACLs that the printed commands grant; `Describe` comes with `Read` and `Write`, by Kafka's own rule."""
    acls = []
    for line in printed.splitlines():
        words = shlex.split(re.sub(r"\$\{(\w+):\?\}", lambda match: match[1].lower(), line))
        who = words[words.index("--allow-principal") + 1].removeprefix("User:")
        operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
        names = [
            (word.removeprefix("--"), _CLUSTER if word == "--cluster" else words[at + 1])
            for at, word in enumerate(words)
            if word.removeprefix("--") in _KINDS
        ]
        acls += [
            Acl(who, kind, name, "--resource-pattern-type" in words, operation)
            for kind, name in names
            for operation in operations
        ]
    return list(dict.fromkeys(acls))


class Estate(World):
    """A topic with a conflated topic, a view and a queue, without rights to them."""

    def __init__(
        self, broker: SecuredBroker, mechanism: Mechanism, directory: Path, name: str, *, has_prefix: bool = True
    ) -> None:
        """Write the settings; `topics apply` creates the topics. Without a prefix there is an ACL for each topic."""
        self.broker = broker
        self.mechanism = mechanism
        self.view = f"{name}_open"
        self.queue = f"{name}_paid"
        super().__init__(
            broker.bootstrap,
            directory,
            name,
            partitions=2,
            sections={
                "views": {self.view: {"underlying": name, "filter": "/state = 'new'", "fields": {"/id": "/id"}}},
                "queues": {self.queue: {"underlying": name, "filter": "/state = 'paid'", "lease": "5s"}},
            },
            more={"topic_prefix": f"{name}-"} if has_prefix else {},
            creates_topics=False,
        )

    def become(self, who: str, **changes: str) -> Path:
        """The settings file of a principal; `changes` are Kafka properties."""
        return self.with_login(who, self.broker.login(self.mechanism, who, **changes))

    def with_login(self, who: str, kafka: Mapping[str, str]) -> Path:
        """A settings file with these Kafka properties."""
        file = self.directory / f"{who}.yaml"
        tree = yaml.safe_load(self.file.read_text())
        tree["state_dir"] = str(self.directory / f"state-{who}")
        file.write_text(yaml.safe_dump(tree | {"kafka": dict(kafka)}))
        return file

    def config_of(self, who: str) -> Config:
        """The settings of a principal."""
        return load(self.become(who))

    def run(self, who: str, *words: str, text: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a principal to its end."""
        return run(self.become(who, **changes), *words, text=text)

    def run_file(self, file: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command with a settings file to its end."""
        return run(file, *words, text=text)

    def start_as(self, who: str, command: str, names: Iterable[str] = (), **changes: str) -> None:
        """Start a worker as a principal."""
        shared, self.file = self.file, self.become(who, **changes)
        try:
            self.start(command, list(names))
        finally:
            self.file = shared

    def printed_acls(self) -> list[Acl]:
        """The ACLs that `topics apply --acls` prints."""
        printed = run(self.file, "topics", "apply", "--acls")
        assert printed.returncode == 0, printed.stderr
        return parse_acls(printed.stdout)

    def granted(self) -> set[AclBinding]:
        """All ACLs of the broker."""
        return {*self.broker.admin.describe_acls(_EVERYTHING).result(120)}

    def grant(self, acls: Iterable[Acl]) -> None:
        """Grant ACLs."""
        for done in self.broker.admin.create_acls([acl.binding for acl in acls]).values():
            done.result(120)

    def revoke(self, acls: Iterable[Acl]) -> None:
        """Take ACLs away."""
        for done in self.broker.admin.delete_acls([acl.filter for acl in acls]).values():
            assert len(done.result(120)) == 1

    def create_topics(self) -> None:
        """Create the topics as an administrator."""
        done = run(self.file, "topics", "apply")
        assert done.returncode == 0, done.stdout + done.stderr

    def close(self) -> None:
        """End all workers, and delete the topics and the ACLs."""
        for worker in self.workers:
            worker.kill()
        Admin(self.config.kafka).delete([spec.name for spec in specs(self.config)])
        for done in self.broker.admin.delete_acls([_EVERYTHING]).values():
            done.result(120)


def run(file: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command with these settings to its end."""
    command = [sys.executable, "-m", "processor.cli.main", *words, "-c", str(file)]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def lines(*records: Mapping[str, Any]) -> str:
    """Records as lines of JSON."""
    return "".join(f"{json.dumps(record)}\n" for record in records)
