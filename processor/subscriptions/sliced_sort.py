"""Sorts many keys in slices, so that a thread with other work can go on in between.

A sorted list that takes a million keys in random order misses the processor's caches with each of them. Keys that were
spread over buckets, and are sorted there, take a third of that time, and no step of it takes long::

    keys ──▶ buckets between 1/500 of the keys, as a random sample has them ──▶ sorted, bucket by bucket
"""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from processor.subscriptions.order import SortKey

BUCKET_KEYS: Final = 500
"""Keys of a bucket on average; the largest of a thousand has about seven times as many."""


def sorted_in_slices(keys: Sequence[SortKey], slice_keys: int) -> Iterator[list[SortKey]]:
    """Sort keys, of which no two are equal.

    Args:
        keys: the keys, which must not change meanwhile.
        slice_keys: how many keys are spread in one slice.

    Yields:
        The keys in order, in parts; an empty part after each slice that spread some.
    """
    count = len(keys) // BUCKET_KEYS
    # Any sample will do: it decides how long a slice takes, and nothing else.
    bounds = sorted(random.Random(count).sample(keys, count))  # noqa: S311
    buckets: list[list[SortKey]] = [[] for _ in range(count + 1)]
    for begin in range(0, len(keys), slice_keys):
        for key in keys[begin : begin + slice_keys]:
            buckets[bisect_right(bounds, key)].append(key)
        yield []
    for number, bucket in enumerate(buckets):
        bucket.sort()
        yield bucket
        buckets[number] = []
