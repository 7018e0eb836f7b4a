"""Declared indexes find the records of a query without a scan, and stay right as records change."""

import json
import random

from processor.filter import compile_filter
from processor.record import Record
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec
from processor.subscriptions.options import Options
from tests.subscriptions.desk import ORDERS

QUERIES = ["/c = 'x'", "/c = 'x' AND /s = 1", "/c IN ('x', 'y') AND /s IN (1, 2) AND /q > 3", "/s = '2' AND /c = 7"]


class Unscanned(MemoryRecords):
    """A view that counts its scans."""

    scans = 0

    def scan(self):
        """Every record."""
        self.scans += 1
        return super().scan()


def test_a_query_by_declared_paths_scans_nothing(random_seed):
    """A query with equalities at all paths of a declared index finds what a scan finds, without one."""
    rng = random.Random(random_seed)
    view = Unscanned()
    engine = Engine(ORDERS, view, indexes=[("/c",), ("/c", "/s")])
    world = {}

    def write(offset):
        key = str(rng.randrange(60))
        body = None if rng.random() < 0.1 else {"id": key, "q": rng.randrange(9)}
        if body is not None:
            body |= {"c": rng.choice(["x", "y", "z", 7, "7", ["x", "z"]]), "s": rng.choice([1, 2, 3, "2"])}
        world[key] = body
        value = None if body is None else json.dumps(body).encode()
        return Record(key.encode(), value, [("version", b"1")], offset, 0)

    engine.load(0, [write(offset) for offset in range(100)])
    engine.index()
    before = view.scans
    for offset in range(100, 400):
        connection = engine.connect()
        listener = engine.connect()
        listener.subscribe(SubscriptionSpec(ORDERS, None, Options(), snapshot=False, live=True, delta=False))
        engine.take(0, [write(offset)], offset)
        text = rng.choice(QUERIES)
        connection.subscribe(SubscriptionSpec(ORDERS, text, Options(), snapshot=True, live=False, delta=False))
        found = {message.sow_key for message in connection.take(1_000) if message.command == "sow"}
        compiled = compile_filter(text)
        assert found == {key for key, body in world.items() if body is not None and compiled.matches(body)}
        listener.close()
    assert view.scans == before
