"""Starts the processes of Ray for a node of a farm, then ends.

    python -m tunefarm.measure.farm.farm_daemon ARGUMENTS

In a process of its own, because Ray is told by the environment, and leaves much behind in whoever
starts it. A head notes the versions of the farm; a node that has others does not join.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack

from ray._private import services
from ray.exceptions import RayError
from ray.scripts import scripts

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.farm_versions import differences, versions
from tunefarm.measure.farm.ray_board import Board, no_answer
from tunefarm.measure.farm.ray_start import LOOPBACK_ALONE, replaced

REFUSED = "refused: "
"""What a line on stderr begins with that says why nothing was started."""


def main(arguments: str) -> int:
    """Start what the arguments, a JSON object, say; the exit code."""
    wanted = json.loads(arguments)
    address, is_head = str(wanted["address"]), wanted["role"] == "head"
    try:
        if not is_head:
            _compare(address)
        with ExitStack() as stack:
            if wanted["alone"]:
                host = address.rpartition(":")[0]
                os.environ[LOOPBACK_ALONE] = "0"  # Ray's daemons look, this process has looked
                stack.enter_context(
                    replaced(services, "resolve_ip_for_localhost", lambda _: lambda name: name)
                )
                stack.enter_context(
                    replaced(services, "get_node_ip_address", lambda _: lambda *_: host)
                )
            no_client = replaced(
                scripts, "get_ray_client_dependency_error", lambda _: lambda: "not wanted"
            )
            stack.enter_context(no_client)  # another port, by which others would run code
            scripts.start.main(args=wanted["arguments"], standalone_mode=False)
        if is_head:
            Board(address).say_versions(versions())
    except MeasureError as error:
        print(f"{REFUSED}{error.message}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - whatever Ray raises is said in a line
        lines = str(error).strip().splitlines() or [type(error).__name__]
        print(f"{REFUSED}Ray did not start: {lines[0]}", file=sys.stderr)
        return 1
    return 0


def _compare(address: str) -> None:
    try:
        theirs = Board(address).versions()
    except RayError as error:
        raise MeasureError(no_answer(address, error)) from error
    if theirs is not None and (different := differences(versions(), theirs)):
        raise MeasureError(f"this machine cannot join the farm at {address}: {different}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
