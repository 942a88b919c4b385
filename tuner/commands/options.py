"""Options that several commands have, and what their values mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.types.extents import FixedInput, Shapes, extent_of

DbOption = Annotated[
    str | None,
    typer.Option("--db", metavar="FILE|URL", help="Tuning database [default: tuning.db]."),
]
JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON (- stdout).")
]
ModelOption = Annotated[str, typer.Option("--model", metavar="FILE", help="ONNX model.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, metavar="T", help="Threads of the kernels.")
]
NumericsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="strict: sums as the model says. default: whatever is fast in its types. bf16, f16: "
        "contractions, and values between them, in that type with sums in f32. int8: products of "
        "8 bits. auto: the fastest of these for each contraction, within --max-error.",
    ),
]
DenormalsOption = Annotated[
    str | None,
    typer.Option(
        "--denormals",
        metavar="flush|keep",
        help="Numbers too small to be normal: zeros in what is computed [default], or as IEEE 754 "
        "says, many times as slow.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE|PRESET", help="Settings: TOML file, quick, overnight."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,224,224",
        help="An input's extents (repeatable): numbers, bounds (batch:1..8) or values "
        "(batch:1|4|16) known when it runs; or those of a symbol: batch=1..8.",
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=VALUE|FILE.npy",
        help="The value that an input always has (repeatable), as in sr=16000: what follows from "
        "it is folded.",
    ),
]
TargetsOption = Annotated[
    str | None,
    typer.Option(
        "--targets",
        metavar="A,B,...",
        help="CPUs to make code for, by name or TOML file; host is this machine.",
    ),
]
FunctionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--functions",
        metavar="FILE.py|MODULE",
        help="Python that registers functions which the model calls by name (repeatable).",
    ),
]
TraceOption = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write what happened when, for ui.perfetto.dev (JSON)."
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics", metavar="FILE", help="Keep a text file for Prometheus up to date meanwhile."
    ),
]
PlanOption = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="search|rules",
        help="What decides of the graph (layouts, chains, the cut into kernels): what is measured "
        "and recorded, or rules alone [default: search].",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Most memory of a run beside constants, inputs and outputs: 64M, 1.5G or bytes.",
    ),
]
UntunedOption = Annotated[
    bool,
    typer.Option("--untuned", help="Default schedules only, without a database."),
]
DumpOption = Annotated[
    str | None,
    typer.Option(metavar="STAGE", help="Print the program after this stage, or all, to stderr."),
]


class UsageError(typer.BadParameter):
    """Options that make no sense together or cannot be read; exit code 2."""

    def format_message(self) -> str:
        """The message alone, without the usage."""
        return self.message


def named_values(values: Iterable[str] | None, option: str, form: str) -> dict[str, str]:
    """`NAME=VALUE` options by name."""
    result: dict[str, str] = {}
    for text in values or ():
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise UsageError(f"{option} {text}: give it as {form}")
        if name in result:
            raise UsageError(f"{option} {name} is given twice")
        result[name] = value
    return result


def memory_bytes(text: str | None) -> int | None:
    """The bytes of `--max-memory`; None if it is not given."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kKMGT]?)(?:i?B)?", text.strip())
    count = (
        0
        if found is None
        else int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
    )
    if not 0 < count <= 1 << 50:
        raise UsageError(f"--max-memory {text}: a size, as 64M, 1.5G or a number of bytes")
    return count


def target_names(text: str | None) -> tuple[str, ...] | None:
    """The names of `--targets`; None if it is not given."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"--targets {text}: names of targets, with commas between")
    return names


def shapes_of(values: Iterable[str] | None, inputs: Iterable[str] | None = None) -> Shapes:
    """`--shape` options as extents by the name of an input or of a symbol, and `--input` options
    as values of inputs."""
    shapes: dict[str, tuple[int | str, ...] | FixedInput] = {}
    for name, text in named_values(values, "--shape", "NAME=1,3,224,224").items():
        try:
            given = [extent_of(extent) for extent in text.split(",")]
        except ShapeError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise UsageError(f"--shape {name}={_shortened(text)}: {error.message}{hint}") from None
        if any(isinstance(extent, int) and extent < 1 for extent in given):
            raise UsageError(f"--shape {name}={text}: extents must be 1 or more")
        shapes[name] = tuple(item if isinstance(item, int) else str(item) for item in given)
    fixed = _fixed_inputs(inputs)
    for name in fixed.keys() & shapes.keys():
        raise UsageError(f"--input {name} and --shape {name}: a value has its own shape")
    return {**shapes, **fixed}


def _fixed_inputs(values: Iterable[str] | None) -> dict[str, FixedInput]:
    """`--input` options: numbers as JSON has them, or files of arrays."""
    found = {}
    for name, text in named_values(values, "--input", "NAME=16000, or NAME=FILE.npy").items():
        try:
            value: object = _read_array(text) if text.endswith(".npy") else json.loads(text)
            fixed = FixedInput.of(value)
        except (ShapeError, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "numbers as in 16000 or [1,2], or FILE.npy"
            raise UsageError(f"--input {name}={_shortened(text)}: {reason}") from error
        found[name] = replace(fixed, text=text)
    return found


def _read_array(path: str) -> object:
    import numpy as np

    return np.load(path, allow_pickle=False)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def numbers_of(values: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    """`--shape` options of a run: extents by the name of an input, or one by that of a symbol."""
    shapes = {}
    for name, text in named_values(values, "--shape", "NAME=2,128").items():
        extents = text.split(",")
        if not all(re.fullmatch(r"\s*[0-9]{1,10}\s*", extent) for extent in extents):
            text = _shortened(text)
            raise UsageError(f"--shape {name}={text}: a run has numbers, as in {name}=2,128")
        shapes[name] = tuple(map(int, extents))
    return shapes
