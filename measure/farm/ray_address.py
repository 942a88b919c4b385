"""Whether a Ray cluster can answer at an address, found out before Ray waits for it for minutes."""

from __future__ import annotations

import re
import socket
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import closing
from functools import partial
from threading import Thread

from tunefarm.compiler.errors import MeasureError

CONNECT_SECONDS = 10.0
WITHOUT_RAY = "tune --runner local measures on this machine without Ray"
_FORM = re.compile(r"(?:ray://)?(?:\[([0-9a-fA-F:.%\w]+)\]|([\w.-]+)):([0-9]{1,5})", re.ASCII)
_FOUND_BY_RAY = ("auto",)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC begins (RFC 9113, section 3.4); the server's first frame has type 4 too."""
_FRAME_TYPE = 3
_TLS_ALERT = 21


def check_address(address: str, seconds: float = CONNECT_SECONDS) -> None:
    """Raise MeasureError unless a server that may be Ray's answers at `address` in time."""
    if address in _FOUND_BY_RAY:
        return
    found = _FORM.fullmatch(address)
    port = int(found[3]) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise MeasureError(
            f"{address!r} is not the address of a Ray cluster", hint="give it as HOST:PORT"
        )
    answer: Future[bytes] = Future()
    asking = partial(_ask, answer, found[1] or found[2], port, seconds)
    Thread(target=asking, name="tunefarm-address", daemon=True).start()
    try:
        start = answer.result(seconds)  # looking up a name takes as long as it likes
    except (NoAnswerError, TimeoutError):
        raise _unreachable(address, f"no answer within {seconds:g} s") from None
    except (OSError, UnicodeError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error
    if not (start[_FRAME_TYPE:][:1] == b"\4" or start[:1] == bytes((_TLS_ALERT,))):
        raise _unreachable(address, "what listens there is not Ray")


def check_loopback(seconds: float = CONNECT_SECONDS) -> None:
    """Raise MeasureError unless processes of this machine can talk through 127.0.0.1."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=seconds),
        ):
            pass
    except OSError as error:
        raise MeasureError(
            f"the processes of Ray cannot talk to each other on this machine: 127.0.0.1: "
            f"{error.strerror or error}",
            hint=f"bring up the loopback interface; {WITHOUT_RAY}",
        ) from error


def _ask(answer: Future[bytes], host: str, port: int, seconds: float) -> None:
    try:
        answer.set_result(_first_bytes(host, port, seconds))
    except (OSError, UnicodeError) as error:
        answer.set_exception(error)


def _first_bytes(host: str, port: int, seconds: float) -> bytes:
    """What a server says to a client of gRPC."""
    with closing(socket.create_connection((host, port), timeout=seconds)) as connection:
        connection.sendall(_PREFACE)
        start = b""
        while len(start) <= _FRAME_TYPE and (more := connection.recv(64)):
            start += more
        return start


def _unreachable(address: str, reason: str) -> MeasureError:
    return MeasureError(
        f"no Ray cluster can be reached at {address}: {reason}",
        hint=f"ray status, on its head node, shows whether it runs; {WITHOUT_RAY}",
    )
