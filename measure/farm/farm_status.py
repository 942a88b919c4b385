"""What a farm looks like at a moment: its nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ray.exceptions import RayError

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.farm_process import NICENESS_LABEL, SLOTS_LABEL
from tunefarm.measure.farm.farm_records import authentication, environment
from tunefarm.measure.farm.ray_address import WITHOUT_RAY, check_address
from tunefarm.measure.farm.ray_board import Board, no_answer
from tunefarm.measure.farm.ray_start import head_client, read_authentication_again
from tunefarm.measure.sandbox.isolated import ask_isolated

_ALIVE = 0
_SECONDS = 10.0
_ANSWER_SECONDS = 25.0  # an answer takes 1 to 3, and longer on a loaded machine


@dataclass(frozen=True, slots=True)
class FarmNode:
    """A node of a farm; `slots` and `niceness` are None where `tune farm` has not started it."""

    id: str
    address: str
    is_head: bool
    cores: int
    slots: int | None
    niceness: int | None


@dataclass(frozen=True, slots=True)
class FarmStatus:
    """A farm as its head tells."""

    address: str
    versions: Mapping[str, str]
    nodes: tuple[FarmNode, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def farm_status(address: str, token_file: str | None = None) -> FarmStatus:
    """Ask the head of the farm at an address. Raises MeasureError where it does not answer.

    That is done in a process of its own: Ray waits for as long as it likes, and prints why.
    """
    check_address(address)
    authentication(address, token_file)  # raises here what is wrong with it
    asked = json.dumps([address, token_file])
    answer = ask_isolated("tunefarm.measure.farm.farm_status", [asked], _ANSWER_SECONDS)
    if answer.failure:
        text = f"the farm at {address} does not answer: {answer.failure}"
        raise MeasureError(text, hint=WITHOUT_RAY)
    description = json.loads(answer.output)
    if isinstance(description, str):
        raise MeasureError(description)
    nodes = tuple(FarmNode(**node) for node in description.pop("nodes"))
    return FarmStatus(**description, nodes=nodes)


def main(asked: str) -> None:
    """Print the status of a farm as JSON; a string is why there is none."""
    address, token_file = json.loads(asked)
    try:
        description: object = _ask(address, token_file).to_json()
    except RayError as error:
        description = no_answer(address, error)
    json.dump(description, sys.stdout)


def _ask(address: str, token_file: str | None) -> FarmStatus:
    with environment(authentication(address, token_file)):
        read_authentication_again()
        table = head_client(address).get_all_node_info(timeout=_SECONDS)
        versions = Board(address).versions() or {}
    nodes = [_node(info) for info in table.values() if info.state == _ALIVE]
    nodes.sort(key=lambda node: (not node.is_head, node.address, node.id))
    return FarmStatus(address, versions, tuple(nodes))


def _node(info: Any) -> FarmNode:
    labels = dict(info.labels)
    return FarmNode(
        info.node_id.hex(),
        str(info.node_manager_address),
        bool(info.is_head_node),
        int(dict(info.resources_total).get("CPU", 0)),
        _number(labels.get(SLOTS_LABEL)),
        _number(labels.get(NICENESS_LABEL)),
    )


def _number(text: object) -> int | None:
    return int(str(text)) if str(text).isdecimal() else None


if __name__ == "__main__":
    main(sys.argv[1])
