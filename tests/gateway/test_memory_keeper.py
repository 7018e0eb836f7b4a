"""The memory of many closed connections is returned once, when few more of them close."""

import asyncio
import gc
import weakref

from processor.gateway.memory_keeper import CLOSED_MIN, MemoryKeeper


class Cycle:
    """An object that only the collector frees."""

    def __init__(self):
        self.me = self


def test_memory_returns_when_a_wave_of_closed_connections_is_over():
    """The collector runs when many connections have closed and the next second brings few more, and then not again."""
    gc.disable()
    try:
        keeper, lost = MemoryKeeper(), weakref.ref(Cycle())

        async def second(closed):
            for _ in range(closed):
                keeper.note_closed()
            await keeper.tend()
            return keeper.returns

        async def seconds(*closed):
            return [await second(count) for count in closed]

        assert asyncio.run(seconds(CLOSED_MIN - 1, 0, 0)) == [0, 0, 0]
        assert asyncio.run(seconds(CLOSED_MIN, CLOSED_MIN)) == [0, 0]
        assert lost() is not None
        assert asyncio.run(seconds(10, 0, 0)) == [1, 1, 1]
        assert lost() is None
    finally:
        gc.enable()
