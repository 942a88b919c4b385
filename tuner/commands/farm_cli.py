"""The commands of `tune farm`: machines that measure for whoever tunes."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show, write_json
from tunefarm.tuner.commands.options import JsonOption
from tunefarm.tuner.commands.usage import Workflow

if TYPE_CHECKING:
    from rich.table import Table

    from tunefarm.measure.farm.farm_records import FarmRecord
    from tunefarm.measure.farm.farm_status import FarmStatus

farm = typer.Typer(
    cls=Workflow,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Have several machines measure.",
)

SlotsOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Cores kept for timed runs; the others build.")
]
PortOption = Annotated[
    int, typer.Option(min=1, max=64000, metavar="P", help="First of the ports it listens on.")
]
NicenessOption = Annotated[
    int,
    typer.Option(
        min=0, max=19, metavar="N", help="Niceness of the workers: more than 0 disturbs timing."
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address at which other machines reach this one."),
]
TokenOption = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="File with the farm's token.")
]


@farm.command("start")
def farm_start(
    slots: SlotsOption = 1,
    port: PortOption = 6379,
    niceness: NicenessOption = 0,
    host: HostOption = None,
    token_file: TokenOption = None,
) -> None:
    """Start a farm on this machine, and say how others join and how to tune on it."""
    from tunefarm.measure.farm.farm_process import FarmOptions, is_loopback, start_farm

    _tell_of_dead()
    record = start_farm(FarmOptions(slots, niceness, host, port), token_file)
    print(f"a farm runs at {record.address}, {_offer(record)}")
    if is_loopback(record.address.rpartition(":")[0]):
        print("it is reached from this machine alone: --host names an address for others")
    join = ["tune", "farm", "join", record.address, "--token-file", "farm-token"]
    print(f"\non each other machine, with a copy of {record.token_file} as farm-token:")
    print(f"  {shlex.join(join)}")
    print("\nto tune, on any machine of the farm:")
    print(f"  tune --model MODEL.onnx --address {record.address}")
    print("\nto look at it, and to end what was started here:")
    print("  tune farm status\n  tune farm stop")


@farm.command("join")
def farm_join(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="HOST:PORT of the farm.")],
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="A copy of the farm's token file.")
    ],
    slots: SlotsOption = 1,
    port: PortOption = 6379,
    niceness: NicenessOption = 0,
    host: HostOption = None,
) -> None:
    """Have this machine measure for a farm; jobs that run already use it at once."""
    from tunefarm.measure.farm.farm_process import FarmOptions, join_farm

    _tell_of_dead()
    record = join_farm(address, token_file, FarmOptions(slots, niceness, host, port))
    print(f"this machine measures for the farm at {record.address}, {_offer(record)}")
    print("to end that: tune farm stop")


@farm.command("status")
def farm_status_command(
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a farm [default: those of this machine]."),
    ] = None,
    token_file: TokenOption = None,
    json: JsonOption = None,
) -> None:
    """Show what runs here, and the nodes and jobs of the farm."""
    check_files(writes=[json])
    from tunefarm.measure.farm.farm_records import records

    here = records()
    running = [record for record in here if record.is_alive]
    addresses = [address] if address else list(dict.fromkeys(r.address for r in running))
    farms = []
    if addresses:
        from tunefarm.measure.farm.farm_status import farm_status

        farms = [farm_status(each, token_file) for each in addresses]
    value = {
        "here": [_record_to_json(record) for record in here],
        "farms": [status.to_json() for status in farms],
    }
    lines = [_here_line(record) for record in here] or ["nothing was started on this machine"]
    show(json, value, *lines, *(part for status in farms for part in _parts(status)))


@farm.command("stop")
def farm_stop(json: JsonOption = None) -> None:
    """End what tune farm has started on this machine; jobs measure on the rest of the farm."""
    check_files(writes=[json])
    from tunefarm.measure.farm.farm_process import stop_farm

    _tell_of_dead()
    ended = stop_farm()
    write_json(json, {"ended": [_record_to_json(record) for record in ended]})
    if json == "-":
        return
    for record in ended:
        what = "the farm" if record.role == "head" else "this machine's part of the farm"
        print(f"{what} at {record.address} has ended")
    if not ended:
        print("nothing runs here that tune farm has started")


def _tell_of_dead() -> None:
    """Say what was started here and has ended by itself, and forget it."""
    from tunefarm.measure.farm.farm_process import forget_dead

    for record in forget_dead():
        what = "the farm" if record.role == "head" else "a node of the farm"
        text = f"{what} at {record.address} is no more: {record.ended_by}"
        print(f"note: {text}", file=sys.stderr)


def _offer(record: FarmRecord) -> str:
    kept = "1 core" if record.slots == 1 else f"{record.slots} cores"
    nice = f", workers at niceness {record.niceness}" if record.niceness else ""
    return f"{kept} kept for timed runs{nice}"


def _here_line(record: FarmRecord) -> str:
    what = "head" if record.role == "head" else "node"
    state = _offer(record) if record.is_alive else f"ended: {record.ended_by}"
    return f"here: {what} of the farm at {record.address}, {state}"


def _record_to_json(record: FarmRecord) -> dict[str, Any]:
    return {
        "role": record.role,
        "address": record.address,
        "token_file": record.token_file,
        "slots": record.slots,
        "niceness": record.niceness,
        "started": record.started,
        "processes": [process.id for process in record.processes],
        "is_alive": record.is_alive,
    }


def _parts(status: FarmStatus) -> list[Table | str]:
    from rich.table import Table

    table = Table(title=f"farm at {status.address}", title_justify="left", header_style="bold")
    for column in ("node", "address", "cores", "for timed runs", "niceness"):
        table.add_column(column)
    for node in status.nodes:
        name = f"{node.id[:12]}{' (head)' if node.is_head else ''}"
        numbers = (node.cores, node.slots, node.niceness)
        table.add_row(name, node.address, *("?" if n is None else str(n) for n in numbers))
    versions = ", ".join(f"{name} {number}" for name, number in status.versions.items())
    lines: list[Table | str] = [table, f"versions: {versions or 'not known'}"]
    for driver in status.drivers:
        lines.append(
            f"job of process {driver.process} on {driver.host}: {driver.waiting} candidates wait"
        )
    return lines if status.drivers else [*lines, "no job measures on it"]
