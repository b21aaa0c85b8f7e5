"""A slow line between a site and the server: what a connection carries comes later and no faster than the line allows.

Delays and rates are a line's in each direction, as a hospital's own line has them; one line carries all connections of
its site. A connection's first bytes come a round trip later still, as over a real line its handshake takes.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

AT_ONCE = 1 << 16


class Line(NamedTuple):
    """How a line is: seconds there and back, and megabits a second in each direction."""

    round_trip_s: float
    mbit_s: float


class SlowLines:
    """Listens at the ports that ``routes`` names and passes all bytes on, each to its port there, over its own line.

    Use it as a context.
    """

    def __init__(self, routes: Mapping[int, int], line: Line) -> None:
        self._routes, self._line = dict(routes), line
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: Sequence[asyncio.Server] = ()

    def __enter__(self) -> Self:
        """Begin to listen."""
        self._thread.start()
        self._servers = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        """End, and cut what is under way."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed goes

    async def _listen(self) -> list[asyncio.Server]:
        servers = []
        for port, to in self._routes.items():
            up, down = _Direction(self._line), _Direction(self._line)

            async def connected(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                to: int = to,
                up: "_Direction" = up,
                down: "_Direction" = down,
            ) -> None:
                with contextlib.suppress(OSError), contextlib.closing(writer):
                    await asyncio.sleep(self._line.round_trip_s)
                    there = await asyncio.open_connection("127.0.0.1", to)
                    with contextlib.closing(there[1]):
                        await asyncio.gather(up.carry(reader, there[1]), down.carry(there[0], writer))

            servers.append(await asyncio.start_server(connected, "127.0.0.1", port))
        return servers


class _Direction:
    """One direction of a line: bytes stand in a queue for it, then travel for half a round trip."""

    def __init__(self, line: Line) -> None:
        self._delay, self._rate = line.round_trip_s / 2, line.mbit_s * 1e6 / 8
        self._free = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection's bytes until it ends."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(_arrive(under_way, writer))
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(OSError):
            while content := await reader.read(AT_ONCE):
                self._free = max(clock(), self._free) + len(content) / self._rate
                under_way.put_nowait((self._free + self._delay, content))
                await asyncio.sleep(self._free - clock())  # who sends is held up, as by a full line
        under_way.put_nowait((clock() + self._delay, b""))
        await arriving


async def _arrive(under_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    with contextlib.suppress(OSError):
        while True:
            due, content = await under_way.get()
            await asyncio.sleep(due - clock())
            if not content:
                break
            writer.write(content)
            await writer.drain()
    writer.close()
