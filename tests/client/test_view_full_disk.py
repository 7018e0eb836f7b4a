"""A kept view on a full disk: its reader gets an error, and with more room the view is complete again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from processor.client import Client, View
from processor.errors import DiskUnusable
from tests.small_disk import small_disks
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.family import Family

pytestmark = pytest.mark.broker

MB = 1 << 20


def catch_up(view: View, count: int) -> None:
    """Take the changes that the run before could not write."""
    while len(view) < count:
        assert view.refresh(PATIENCE_S)


@pytest.mark.parametrize("records", [90, 50], ids=["while reading", "at the end"])
@pytest.mark.long
def test_a_view_on_a_full_disk_raises_and_is_complete_with_more_room(
    family: Family, tmp_path: Path, records: int
) -> None:
    """At any point of a failed write, the directory is free again at once, and no record is missing."""
    rng = random.Random(5)
    truth = {str(n): {"id": str(n), "noise": rng.randbytes(100_000).hex()} for n in range(records)}
    with family.transaction():
        for key, value in truth.items():
            family.write(f"{family.name}.sow", key, value, version="1")

    with small_disks(tmp_path) as make:
        disk = make(6 * MB)
        delivered = (
            rf"(?s){disk.path}/{family.name}/\d.*No space left on device.*\d MB are free there.*make room.*view_dir"
        )
        with Client("one", family.config, view_dir=disk.path) as client:
            for _ in range(2):
                with pytest.raises(DiskUnusable, match=delivered), client.view(family.name) as view:
                    catch_up(view, records)
            disk.grow(64 * MB)
            with client.view(family.name) as view:
                catch_up(view, records)
                assert dict(view) == truth
        with Client("two", family.config, view_dir=disk.path) as client, client.view(family.name) as view:
            assert dict(view) == truth
