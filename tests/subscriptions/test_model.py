"""Under random updates, subscriptions and takes every subscriber always holds the records of a naive model."""

import json

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from processor.errors import SubscriberTooSlow
from processor.subscriptions import SubscriptionSpec, parse_options
from tests.subscriptions.desk import CALLS, ORDERS, Desk
from tests.subscriptions.replica import Replica, World, ended

FILTERS = [
    None,
    None,
    "/a > 1",
    "/a = 1",
    "/s = 'x'",
    "/s IN ('x', 'y') AND /a < 3",
    "/o/p = 1 OR /a IS NULL",
    "/l/p = 1",
    "SOW_KEY() != '2' AND MESSAGE_SIZE() > 30",
]
SELECTS = [None, None, "[-/,+/a]", "[-/a,-/o/q]", "[-/,+/o/p,+/l/q]"]
ORDERS_BY = [None, "/a", "[/a DESC,/s]", "SOW_KEY() DESC"]
KEYS = st.integers(1, 5)
PART = st.fixed_dictionaries({}, optional={"p": st.integers(0, 1), "q": st.integers(0, 1)})
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(0, 3),
        "s": st.sampled_from(["x", "y", "z"]),
        "o": st.one_of(PART, st.just(5)),
        "l": st.lists(PART, max_size=2),
    },
)
WRITES = st.tuples(KEYS, st.one_of(BODIES, BODIES, BODIES, st.sampled_from([b"delete", b"expire"])))


@st.composite
def wishes(draw):
    """A call, a filter and options that are valid together."""
    call = draw(st.sampled_from([*CALLS, *list(CALLS)[2:], "sow_and_delta_subscribe"]))
    snapshot, live, delta = CALLS[call].values()
    flags = ["timestamp", *(["oof"] * live), *(["no_empties", "no_sowkey"] * delta)]
    options = draw(st.lists(st.sampled_from(flags), unique=True))
    if live and draw(st.booleans()):
        options.append("oof") if "oof" not in options else None
    if (select := draw(st.sampled_from(SELECTS))) is not None:
        options.append(f"select={select}")
    if live and (pace := draw(st.sampled_from([None, "100ms", "250ms", "auto", "none"]))) is not None:
        options.append(f"conflation={pace}")
    is_window = draw(st.integers(0, 2)) == 0
    if is_window:
        options.append(f"top_n={draw(st.integers(0, 3))},skip_n={draw(st.integers(0, 2))}")
    if (snapshot or is_window) and (order := draw(st.sampled_from(ORDERS_BY))) is not None:
        options.append(f"order_by={order}")
    return call, draw(st.sampled_from(FILTERS)), ",".join(options)


class Model(RuleBasedStateMachine):
    """Two connections, one with a small queue, to an engine of two partitions."""

    @initialize(
        queue_max=st.integers(1, 4),
        writes=st.lists(WRITES, min_size=3, max_size=8),
        wanted=st.lists(st.tuples(st.integers(0, 1), wishes()), min_size=3, max_size=6),
    )
    def begin(self, queue_max, writes, wanted):
        """Begin with some records and some subscriptions."""
        self.desk = Desk()
        self.connections = [self.desk.subscriber, self.desk.engine.connect(queue_max)]
        self.world = World(ORDERS)
        self.subscriptions = {}
        self.write(writes)
        for at, wish in wanted:
            self.subscribe(at, wish)

    @rule(
        turns=st.lists(
            st.tuples(
                st.lists(WRITES, min_size=1, max_size=4), st.sampled_from([0, 0, 10, 100, 300]), st.integers(0, 5)
            ),
            min_size=1,
            max_size=4,
        )
    )
    def go_on(self, turns):
        """Workers write, time passes, and subscribers take some of the waiting messages."""
        for writes, interval_ms, count in turns:
            self.write(writes)
            self.desk.pass_ms(interval_ms)
            for at in (0, 1):
                self.take(at, count)

    def write(self, writes):
        """Write a batch of records."""
        batch = []
        for key, body in writes:
            if isinstance(body, bytes):
                batch.append((self.desk.record(key, None, kind=body), None))
            else:
                value = {"id": key, **body}
                batch.append((self.desk.record(key, json.dumps(value).encode()), value))
        for partition in (0, 1):  # As the desk takes them.
            for record, value in batch:
                if self.desk.partition(record.key) == partition:
                    self.world.take(record, value)
        self.desk.take(*(record for record, _ in batch))

    @rule(at=st.integers(0, 1), wish=wishes())
    def subscribe(self, at, wish):
        """Begin a subscription."""
        call, filtered, options = wish
        how = CALLS[call]
        request = SubscriptionSpec(ORDERS, filtered, parse_options(options, **how), **how)
        sub_id = f"{at}{len(self.subscriptions)}"
        subscription = self.desk.subscribe(call, filtered, options, sub_id=sub_id, connection=self.connections[at])
        self.subscriptions[sub_id] = subscription
        self.world.replicas[sub_id] = Replica(self.world, call, request, subscription.interval_ms, self.desk.now_ms)

    @rule(at=st.integers(0, 1), count=st.integers(1, 6))
    def take(self, at, count):
        """Take some of the waiting messages."""
        try:
            messages = self.connections[at].take(count)
        except SubscriberTooSlow as error:
            replica = self.world.replicas.pop(ended(error))
            assert replica.options.conflation == "none"
            return
        assert len(messages) <= count
        for message in messages:
            assert message.sub_ids
            for sub_id in message.sub_ids:
                self.world.replicas[sub_id].hear(message, self.desk.now_ms)

    @rule(interval_ms=st.sampled_from([10, 100, 300]))
    def wait(self, interval_ms):
        """Let time pass."""
        self.desk.pass_ms(interval_ms)

    @rule(which=st.integers(0, 60))
    def close(self, which):
        """Close a subscription from time to time."""
        if which < 20 and self.world.replicas:
            sub_id = sorted(self.world.replicas)[which % len(self.world.replicas)]
            self.desk.close(self.subscriptions[sub_id])
            del self.world.replicas[sub_id]

    @rule()
    def settle(self):
        """Deliver and take all waiting messages."""
        for _ in range(200):
            for at, connection in enumerate(self.connections):
                while connection.has_waiting:
                    self.take(at, 6)
            if (due_ms := self.desk.engine.due_ms) is None:
                break
            self.desk.pass_ms(max(0, due_ms - self.desk.now_ms))
        else:
            raise AssertionError("it never settles")
        for replica in self.world.replicas.values():
            replica.settle()

    def teardown(self):
        """Check that all messages are delivered in the end, and that closed connections leave nothing behind."""
        if not hasattr(self, "desk"):
            return
        self.settle()
        for connection in self.connections:
            connection.close()
        assert not self.desk.engine._routes
        assert not len(self.desk.engine._deadlines)
        assert not len(self.desk.engine._routes._index)


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.random
def test_subscribers_hold_the_records_of_the_model():
    """Every subscriber holds the records of the model; only the long run shrinks a failing example."""
    quick = settings(SETTINGS, max_examples=50, stateful_step_count=30, phases=[Phase.generate])
    run_state_machine_as_test(Model, settings=quick)


@pytest.mark.random
@pytest.mark.long
@pytest.mark.timeout(900)
def test_subscribers_hold_the_records_of_the_model_for_long(steps):
    """Every subscriber holds the records of the model in many more examples, and a failing one is shrunk."""
    run_state_machine_as_test(
        Model, settings=settings(SETTINGS, max_examples=steps(3_000), stateful_step_count=50, print_blob=True)
    )
