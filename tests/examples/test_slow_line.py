"""Slow lines carry all bytes unchanged, and never sooner than the line allows."""

import socket
import threading
import time

from examples.loopback import free_ports
from examples.slow_line import Line, SlowLines


def test_bytes_arrive_unchanged_in_both_directions_and_no_sooner_than_the_line_allows():
    listening, behind = free_ports(2)
    sent = bytes(range(256)) * 400
    with socket.create_server(("127.0.0.1", behind)) as server:
        echo = threading.Thread(target=_echo, args=(server, len(sent)))
        echo.start()
        with SlowLines({listening: behind}, Line(round_trip_s=0.1, mbit_s=8.0)):
            begun = time.monotonic()
            with socket.create_connection(("127.0.0.1", listening)) as here:
                here.sendall(sent)
                came = _read(here, len(sent))
            took = time.monotonic() - begun
        echo.join()

    assert came == sent
    # the handshake, there and back, and 0.1 MB at 1 MB/s (a reader's last piece is on its way while it is read)
    assert took >= 0.1 + 0.1 + 0.1


def test_a_connection_that_the_server_ends_ends_at_the_site():
    listening, behind = free_ports(2)
    with (
        socket.create_server(("127.0.0.1", behind)) as server,
        SlowLines({listening: behind}, Line(round_trip_s=0.02, mbit_s=100.0)),
        socket.create_connection(("127.0.0.1", listening)) as here,
    ):
        server.accept()[0].close()

        assert here.recv(1) == b""


def _echo(server, size):
    with server.accept()[0] as there:
        there.sendall(_read(there, size))


def _read(connection, size):
    content = b""
    while len(content) < size:
        content += connection.recv(size - len(content))
    return content
