import subprocess
import sys
import textwrap
import threading
import time

from processor.client.subscribe.subscription import Subscription
from processor.subscriptions import Message
from tests.waiting import PATIENCE_S, until


class Quiet:
    """A feed without messages that counts its turns."""

    is_live = True
    is_over = False

    def __init__(self) -> None:
        self.turns = 0
        self.added_at: list[int] = []
        self.delivered: bool | None = None
        self.busy = threading.Event()

    def fetch(self, wait_s: float) -> list[Message]:
        """Do a turn."""
        self.turns += 1
        self.busy.set()
        time.sleep(wait_s)
        return []

    def add(self, _request: object, _sub_id: str | None) -> str:
        """Record the time."""
        self.added_at.append(self.turns)
        return "1"

    def remove(self, sub_id: str) -> None:
        """Do nothing."""

    def close(self, *, delivered: bool) -> None:
        """Record the argument."""
        self.delivered = delivered


def opened(feed: Quiet, **arguments: object) -> Subscription:
    """A subscription to the feed."""
    wanted = {"timeout_s": None, "on_message": None} | arguments
    return Subscription(feed, lambda *_: None, on_close=lambda _: None, **wanted)  # type: ignore[arg-type, return-value]


def test_adding_waits_for_one_turn_only():
    """With a plain lock the reader would often take it again before other threads have woken up."""
    adding: list[threading.Thread] = []
    wanted_at: list[int] = []

    class Crowded(Quiet):
        """A feed with another waiting thread in each of its turns."""

        def fetch(self, wait_s: float) -> list[Message]:
            self.turns += 1
            if self.turns <= 20:
                adding.append(threading.Thread(target=subscription.add))
                adding[-1].start()
                while is_free(subscription._door):
                    time.sleep(0.001)
                wanted_at.append(self.turns)
            return []

    feed = Crowded()
    subscription = opened(feed)
    reader = threading.Thread(target=subscription.next_within, args=(None,))
    reader.start()
    until(lambda: len(feed.added_at) >= 20)
    subscription.close()
    for thread in (reader, *adding):
        thread.join(PATIENCE_S)
    assert feed.added_at == wanted_at == list(range(1, 21))


def is_free(door: threading.RLock) -> bool:  # type: ignore[valid-type]
    """Return whether no thread waits for it."""
    if door.acquire(blocking=False):  # type: ignore[attr-defined]
        door.release()  # type: ignore[attr-defined]
        return True
    return False


def test_messages_of_a_turn_during_a_close_count_as_undelivered():
    """The reader takes at most the first message: the feed must keep the others for the next run."""

    class Late(Quiet):
        """A feed that returns two messages while the subscription is being closed."""

        def fetch(self, wait_s: float) -> list[Message]:
            self.busy.set()
            while not subscription._is_closed:
                time.sleep(0.001)
            return [Message("publish", "orders")] * 2

    feed = Late()
    subscription = opened(feed)
    reader = threading.Thread(target=subscription.next_within, args=(None,))
    reader.start()
    assert feed.busy.wait(PATIENCE_S)
    subscription.close()
    reader.join(PATIENCE_S)
    assert feed.delivered is False


def test_a_program_ends_with_an_open_async_subscription():
    """A program can end while a subscription is open and waits without a timeout."""
    program = """
        import asyncio
        from tests.client.test_subscription import Quiet, opened

        async def read() -> None:
            await asyncio.wait_for(anext(opened(Quiet())), 0.1)

        try:
            asyncio.run(read())
        except TimeoutError:
            print("nothing came")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert (ended.stdout, ended.stderr) == ("nothing came\n", "")
