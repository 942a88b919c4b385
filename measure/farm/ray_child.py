"""Starts the processes of Ray for a node, and tries whether a driver can join, then ends.

    python -m tunefarm.measure.farm.ray_child WANTED PARENT

In a process of its own, because Ray is configured by the environment, leaves much behind in whoever
starts it, waits for minutes where something is missing, and ends the process that joins a cluster
which does not answer as it should. See `ray_launch`, which gives it its time.

A head notes the versions of the farm; a node that has others does not join.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray._private.node import Node
from ray.exceptions import RayError
from ray.scripts import scripts

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.ray_board import Board, no_answer
from tunefarm.measure.farm.ray_launch import ADDRESS_FILE, REFUSED, Wanted
from tunefarm.measure.farm.ray_start import LOOPBACK_ALONE, connect, replaced
from tunefarm.measure.sandbox.limits import die_with
from tunefarm.measure.sandbox.versions import differences, versions


def main(arguments: str, parent: int) -> int:
    """Do what the arguments, a `Wanted` as JSON, say; the exit code. It ends with its parent."""
    die_with(parent)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)  # the daemons inherit what is blocked
    wanted = Wanted(**json.loads(arguments))
    try:
        address = wanted.address
        if wanted.role == "node":
            _compare(address)
        if wanted.role != "driver":
            _start(wanted)
        if wanted.role == "head":
            address = Path(wanted.folder, ADDRESS_FILE).read_text().strip()
            Board(address).say_versions(versions())
        if wanted.role != "node":  # a driver joins next: what ends or holds it shows here
            connect(address, {}, alone=wanted.alone)
            ray.shutdown()
    except MeasureError as error:
        print(f"{REFUSED}{error.message}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - whatever Ray raises is said in a line
        lines = str(error).strip().splitlines() or [type(error).__name__]
        print(f"{REFUSED}{lines[0]}", file=sys.stderr)
        return 1
    return 0


def _start(wanted: Wanted) -> None:
    """Start the processes of a node, which stay."""
    with ExitStack() as stack:
        if wanted.alone:
            host = wanted.address.rpartition(":")[0]
            os.environ[LOOPBACK_ALONE] = "0"  # noqa: TID251 - Ray's daemons look, we have
            names: Mapping[str, Any] = {
                "resolve_ip_for_localhost": lambda _: lambda name: name,
                "get_node_ip_address": lambda _: lambda *_: host,
            }
            for name, replace in names.items():
                stack.enter_context(replaced(services, name, replace))
        no_client = replaced(
            scripts, "get_ray_client_dependency_error", lambda _: lambda: "not wanted"
        )
        stack.enter_context(no_client)  # another port, by which others would run code
        # What serves the dashboard starts without one, too, and everything waits for it.
        no_server = replaced(Node, "start_api_server", lambda _: lambda *_, **_k: None)
        stack.enter_context(no_server)
        scripts.start.main(args=list(wanted.arguments), standalone_mode=False)


def _compare(address: str) -> None:
    try:
        theirs = Board(address).versions()
    except RayError as error:
        raise MeasureError(no_answer(address, error)) from error
    if theirs is not None and (different := differences(versions(), theirs)):
        raise MeasureError(f"this machine cannot join the farm at {address}: {different}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
