"""Creates the ACLs that stand on stdin, a list of the arguments of `AclBinding` by name."""

from __future__ import annotations

import json
import sys

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from served import kafka

if __name__ == "__main__":
    acls = [
        AclBinding(
            ResourceType[kind], name, ResourcePatternType[pattern], principal, "*", AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, pattern, principal, operation in json.load(sys.stdin)
    ]  # fmt: skip
    admin = AdminClient(kafka())  # Its requests end with it.
    for created in admin.create_acls(acls).values():
        created.result(60)
    print(len(acls))
