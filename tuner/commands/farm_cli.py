"""The commands of `tune farm`: machines that measure for tuning jobs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunefarm.tuner.commands.command_files import check_files
from tunefarm.tuner.commands.command_line import show, write_json
from tunefarm.tuner.commands.options import JsonOption, argument, option
from tunefarm.tuner.commands.usage import Workflow
from tunefarm.tuner.commands.verbosity import note

if TYPE_CHECKING:
    from rich.table import Table

    from tunefarm.measure.farm.farm_records import FarmRecord
    from tunefarm.measure.farm.farm_status import FarmStatus

farm = typer.Typer(
    cls=Workflow, rich_markup_mode=None, no_args_is_help=True, help="Measure on several machines."
)

SlotsOption = Annotated[
    int, option("--slots N", "Cores reserved for timed runs; the others build.", min=1)
]
PortOption = Annotated[
    int, option("--port P", "First of the ports to listen on.", min=1, max=64000)
]
NicenessOption = Annotated[
    int,
    option(
        "--niceness N", "Niceness of the workers; more than 0 makes timings noisy.", min=0, max=19
    ),
]
HostOption = Annotated[
    str | None, option("--host ADDRESS", "Address at which other machines reach this one.")
]
TokenOption = Annotated[str | None, option("--token-file FILE", "File with the farm's token.")]


@farm.command("start")
def farm_start(
    slots: SlotsOption = 1,
    port: PortOption = 6379,
    niceness: NicenessOption = 0,
    host: HostOption = None,
    token_file: TokenOption = None,
) -> None:
    """Start a farm on this machine, and print how to join it and how to tune on it."""
    from tunefarm.measure.farm.farm_process import FarmOptions, is_loopback, start_farm

    _report_dead_farm()
    record = start_farm(FarmOptions(slots, niceness, host, port), token_file)
    print(f"a farm runs at {record.address}, {_offer(record)}")
    if is_loopback(record.address.rpartition(":")[0]):
        print("only this machine can reach it: --host ADDRESS opens it to others")
    join = ["tune", "farm", "join", record.address, "--token-file", "farm-token"]
    print(f"\non each other machine, with a copy of {record.token_file} as farm-token:")
    print(f"  {shlex.join(join)}")
    print("\nto tune, on any machine of the farm:")
    print(f"  tune MODEL.onnx --address {record.address}")
    print("\nto check its state, and to stop it:")
    print("  tune farm status\n  tune farm stop")


@farm.command("join")
def farm_join(
    address: Annotated[str, argument("ADDRESS", "HOST:PORT of the farm.")],
    token_file: Annotated[str, option("--token-file FILE", "A copy of the farm's token file.")],
    slots: SlotsOption = 1,
    port: PortOption = 6379,
    niceness: NicenessOption = 0,
    host: HostOption = None,
) -> None:
    """Join a farm: this machine measures for it; running jobs use it at once."""
    from tunefarm.measure.farm.farm_process import FarmOptions, join_farm

    _report_dead_farm()
    record = join_farm(address, token_file, FarmOptions(slots, niceness, host, port))
    print(f"this machine measures for the farm at {record.address}, {_offer(record)}")
    print("to stop that: tune farm stop")


@farm.command("status")
def farm_status_command(
    address: Annotated[
        str | None, option("--address ADDRESS", "Address of a farm [default: this machine's].")
    ] = None,
    token_file: TokenOption = None,
    json: JsonOption = None,
) -> None:
    """Show what runs on this machine, and the nodes of the farm."""
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
    """Stop what tune farm has started on this machine; jobs continue on the rest of the farm."""
    check_files(writes=[json])
    from tunefarm.measure.farm.farm_process import stop_farm

    _report_dead_farm()
    ended = stop_farm()
    write_json(json, {"ended": [_record_to_json(record) for record in ended]})
    if json == "-":
        return
    for record in ended:
        what = "the farm" if record.role == "head" else "this machine's part of the farm"
        print(f"{what} at {record.address} has ended")
    if not ended:
        print("nothing that tune farm has started runs on this machine")


def _report_dead_farm() -> None:
    """Print a note on what was started here and has ended by itself, and forget it."""
    from tunefarm.measure.farm.farm_process import forget_dead

    for record in forget_dead():
        what = "the farm" if record.role == "head" else "a node of the farm"
        note(f"{what} at {record.address} has ended: {record.ended_by}")


def _offer(record: FarmRecord) -> str:
    kept = "1 core" if record.slots == 1 else f"{record.slots} cores"
    nice = f", workers at niceness {record.niceness}" if record.niceness else ""
    return f"{kept} reserved for timed runs{nice}"


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
    return [table, f"versions: {versions or 'unknown'}"]
