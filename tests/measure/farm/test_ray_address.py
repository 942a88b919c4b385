"""An address at which no Ray cluster answers is refused in time, with the reason."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.ray_address import check_address

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        yield found


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def answer(listener: socket.socket, data: bytes) -> None:
    """Say `data` to the next client, from a thread."""

    def serve() -> None:
        connection, _ = listener.accept()
        with closing(connection):
            connection.recv(1)
            connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:x",
        "a b:1",
        "host:1\n",
        "x\0:1",
        "é:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(MeasureError, match="HOST:PORT"):
        check_address(address)


def test_a_closed_port_is_refused(listener: socket.socket) -> None:
    address = address_of(listener)
    listener.close()
    with pytest.raises(MeasureError, match="refused"):
        check_address(address)


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(MeasureError, match="no Ray cluster can be reached"):
        check_address("no-such-host.invalid:6379")


def test_what_listens_and_is_silent_is_refused_in_time(listener: socket.socket) -> None:
    with pytest.raises(MeasureError, match=r"no answer within 0\.2 s"):
        check_address(address_of(listener), seconds=0.2)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH"])
def test_what_listens_and_is_not_ray_is_refused(listener: socket.socket, data: bytes) -> None:
    answer(listener, data)
    with pytest.raises(MeasureError, match=r"not Ray|reset"):
        check_address(address_of(listener))


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_what_answers_as_ray_does_is_accepted(listener: socket.socket, form: str) -> None:
    answer(listener, SETTINGS)
    check_address(form.format(address_of(listener)))
    check_address("auto")
