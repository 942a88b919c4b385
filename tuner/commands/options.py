"""Options that several commands have, and what their values mean."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.models import ArgumentInfo, OptionInfo

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.function_modules import load_modules
from tunefarm.compiler.types.extents import FixedInput, Shapes, shape_of_text
from tunefarm.tuner.calibration.options import PrecisionOptions
from tunefarm.tuner.commands.completion import stage_values, target_values

DETERMINISTIC = "deterministic"
INPUT_FORM = "NAME=16000, or NAME=FILE.npy"
PANELS = ("Model", "Search", "Precision", "Target", "Output", "Advanced", "Options")
"""The parts of a command's options in its help, in this order; the last has all others."""
_PRECISIONS = "strict|default|deterministic|int8-activations|bf16|fp16|int8|auto"
MODEL, SEARCH, PRECISION, TARGET, OUTPUT, ADVANCED, _ = PANELS
_WORD = re.compile(r"[a-z0-9][a-z0-9-]*")


def option(typed: str, help: str, panel: str | None = None, **values: Any) -> OptionInfo:
    """An option as it is typed, "--output -o FILE", in a panel of its command's help.

    Shells complete the words that a value of the form a|b|FILE lists. `values` are as typer.Option
    has them, as are those of `argument`.
    """
    *names, last = typed.split()
    if last.startswith("-"):  # without a value
        names.append(last)
    else:
        values["metavar"] = last
        words = [word for word in last.removesuffix(",...").split("|") if _WORD.fullmatch(word)]
        if "|" in last and words:
            values.setdefault("autocompletion", lambda: words)
    found: OptionInfo = typer.Option(*names, help=help, rich_help_panel=panel, **values)
    return found


def argument(metavar: str, help: str, **values: Any) -> ArgumentInfo:
    """A value that is typed without the name of an option."""
    found: ArgumentInfo = typer.Argument(metavar=metavar, help=help, **values)
    return found


DbOption = Annotated[
    str | None, option("--db FILE|URL", "Tuning database [default: tuning.db].", MODEL)
]
JsonOption = Annotated[
    str | None, option("--json FILE", "Write the result as JSON (-: to stdout).", OUTPUT)
]
ModelOption = Annotated[str, option("--model FILE", "ONNX model, the same as MODEL.", MODEL)]
OutputOption = Annotated[str | None, option("--output -o FILE", "Output file.", OUTPUT)]
VerboseOption = Annotated[
    int, option("--verbose -v", "Log what is done to stderr; twice: in detail.", OUTPUT, count=True)
]
QuietOption = Annotated[
    bool, option("--quiet -q", "Print only errors, and one line with the result.", OUTPUT)
]
ThreadsOption = Annotated[
    int | None,
    option(
        "--threads T",
        "Threads of a kernel; tune with as many as you serve with [default: 1].",
        TARGET,
        min=1,
    ),
]
NumericsOption = Annotated[
    str | None,
    option(
        f"--precision {_PRECISIONS}",
        "strict: no algorithm that changes rounding. deterministic: see --deterministic. "
        "default: the fastest in the model's own types. int8-activations: what weights of 2 to 8 "
        "bits are multiplied with is rounded to 8 bits. bf16, fp16: each matmul/conv, and values "
        "between them, in that type with sums in f32. int8: 8-bit integer matmul/conv. auto: the "
        "fastest of bf16, fp16, int8 and f32 for each matmul/conv, within --max-error.",
        PRECISION,
    ),
]
DeterministicOption = Annotated[
    bool,
    option(
        "--deterministic",
        "The same bits for any schedule, number of threads and CPU of a family: x86-64 with "
        "FMA (AVX2 and AVX-512), or 64-bit Arm. Short for --precision deterministic; tune bench "
        "measures what it costs.",
        PRECISION,
    ),
]
DenormalsOption = Annotated[
    str | None,
    option(
        "--denormals flush|keep",
        "Denormal numbers: flush them to zero, or keep them as IEEE 754 says, which is many "
        "times slower [default: flush].",
        PRECISION,
    ),
]
ConfigOption = Annotated[
    str | None,
    option("--config quick|overnight|FILE", "Settings: a preset or a TOML file.", SEARCH),
]
ShapeOption = Annotated[
    list[str] | None,
    option(
        "--shape NAME=1,3,224,224",
        "The shape of an input (repeatable). A dimension is a number, or dynamic: a range "
        "(batch:1..8) or a list of values (batch:1|4|16). Or a dynamic dimension by its name: "
        "batch=1..8.",
        MODEL,
    ),
]
InputOption = Annotated[
    list[str] | None,
    option(
        "--input NAME=VALUE|FILE.npy",
        "A constant value for an input (repeatable), as in sr=16000: what depends on it alone "
        "is computed at build time.",
        MODEL,
    ),
]
TargetsOption = Annotated[
    str | None,
    option(
        "--targets A,B,...",
        "CPUs to compile for, by name or TOML file; host: this machine [default: host].",
        TARGET,
        autocompletion=target_values,
    ),
]
MachineOption = Annotated[
    str | None,
    option(
        "--machine FILE",
        "What this CPU is like, as tune doctor --calibrate wrote it [default: the table that "
        "comes with the package].",
        TARGET,
    ),
]
LayersOption = Annotated[
    str | None,
    option(
        "--layers FILE|URL,...",
        "Databases that are asked where --db has no record of a kernel, in this order; they "
        "are only read.",
        ADVANCED,
    ),
]
FunctionsOption = Annotated[
    list[str] | None,
    option(
        "--functions FILE.py|MODULE",
        "Python that registers the custom operators of the model (repeatable).",
        MODEL,
    ),
]
MemoryOption = Annotated[
    str | None,
    option(
        "--max-memory SIZE",
        "Maximum memory of a run without constants, inputs and outputs: 64M, 1.5G or bytes.",
        ADVANCED,
    ),
]
UntunedOption = Annotated[
    bool, option("--untuned", "Use default schedules and no database.", MODEL)
]
DumpOption = Annotated[
    str | None,
    option(
        "--dump-after all|STAGE",
        "Print the program after this compiler stage (a wrong name lists them), or after "
        "all, to stderr.",
        ADVANCED,
        autocompletion=stage_values,
    ),
]


_OF_MODELS: Mapping[str, tuple[Any, Any]] = {
    "threads": (ThreadsOption, None),
    "numerics": (NumericsOption, None),
    "deterministic": (DeterministicOption, False),
    "denormals": (DenormalsOption, None),
    "config": (ConfigOption, None),
    "shape": (ShapeOption, None),
    "input": (InputOption, None),
    "functions": (FunctionsOption, None),
}
"""The options of every command that compiles a model, with their defaults."""


def model_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `_OF_MODELS` behind its `db`: it finds them in the `params` of
    its context. The modules of `--functions` are loaded before it runs."""
    own = inspect.signature(command, eval_str=True)
    parameters = list(own.parameters.values())
    place = 1 + list(own.parameters).index("db")
    parameters[place:place] = [
        inspect.Parameter(name, parameters[0].kind, default=default, annotation=option)
        for name, (option, default) in _OF_MODELS.items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        load_modules(given["functions"] or ())
        command(**{name: given[name] for name in own.parameters})

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


class UsageError(typer.BadParameter):
    """Options that exclude each other or cannot be read; exit code 2."""

    def format_message(self) -> str:
        """The message alone, without the usage."""
        return self.message


def named_values(values: Iterable[str] | None, option: str, form: str) -> dict[str, str]:
    """`NAME=VALUE` options by name."""
    result: dict[str, str] = {}
    for text in values or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"{option} {text}: give it as {form}")
        if name in result:
            raise UsageError(f"{option} {name} is given twice")
        result[name] = value
    return result


def files_of(values: Mapping[str, str]) -> list[str]:
    """The files among the values of `--input` options."""
    from tunefarm.compiler.runtime.artefact.array_files import json_array

    return [text for text in values.values() if json_array(text) is None]


def _memory_bytes(text: str | None) -> int | None:
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
        raise UsageError(f"--max-memory {text}: give 64M, 1.5G or a number of bytes")
    return count


def _precision_of(precision: str | None, deterministic: bool) -> str | None:
    """The value of --precision, which --deterministic is short for one of.

    Raises UsageError where both are given and differ.
    """
    if deterministic and precision not in (None, DETERMINISTIC):
        raise UsageError(f"--deterministic is --precision {DETERMINISTIC}, not {precision}")
    return DETERMINISTIC if deterministic else precision


def target_names(text: str | None) -> tuple[str, ...] | None:
    """The names of `--targets`; None if it is not given."""
    return _names(text, "--targets", "names of targets")


def _layer_names(text: str | None) -> tuple[str, ...] | None:
    return _names(text, "--layers", "databases")


def _names(text: str | None, option: str, what: str) -> tuple[str, ...] | None:
    """What a list separated by commas names; None if it is not given."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"{option} {text}: give {what}, separated by commas")
    return names


def model_shapes(given: Mapping[str, Any]) -> Shapes:
    """`shapes_of` the options of a command that compiles a model, by their names in Python."""
    return shapes_of(given["shape"], given["input"])


def shapes_of(values: Iterable[str] | None, inputs: Iterable[str] | None = None) -> Shapes:
    """`--shape` options as dimensions by the name of an input or of a dynamic dimension, and
    `--input` options as values of inputs."""
    shapes: dict[str, tuple[int | str, ...]] = {}
    for name, text in named_values(values, "--shape", "NAME=1,3,224,224").items():
        try:
            shapes[name] = shape_of_text(text)
        except ShapeError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise UsageError(f"--shape {name}={_shortened(text)}: {error.message}{hint}") from None
        if any(isinstance(extent, int) and extent < 1 for extent in shapes[name]):
            raise UsageError(f"--shape {name}={text}: dimensions must be 1 or more")
    fixed = _fixed_inputs(inputs)
    for name in fixed.keys() & shapes.keys():
        raise UsageError(
            f"--input {name} and --shape {name}: a constant has its own shape, give one of them"
        )
    return {**shapes, **fixed}


def _fixed_inputs(values: Iterable[str] | None) -> dict[str, FixedInput]:
    """`--input` options: numbers as JSON has them, or files of arrays."""
    found = {}
    for name, text in named_values(values, "--input", INPUT_FORM).items():
        try:
            value: object = _read_array(text) if text.endswith(".npy") else json.loads(text)
            fixed = FixedInput.of(value)
        except (ShapeError, OSError, ValueError) as error:
            reason = (
                getattr(error, "strerror", None)
                or "give numbers, as in 16000 or [1,2], or FILE.npy"
            )
            raise UsageError(f"--input {name}={_shortened(text)}: {reason}") from error
        found[name] = replace(fixed, text=text)
    return found


def _read_array(path: str) -> object:
    import numpy as np

    return np.load(path, allow_pickle=False)


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def numbers_of(values: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
    """`--shape` options of a run: dimensions by the name of an input, or one by its own name."""
    shapes = {}
    for name, text in named_values(values, "--shape", "NAME=2,128").items():
        extents = text.split(",")
        if not all(re.fullmatch(r"\s*[0-9]{1,10}\s*", extent) for extent in extents):
            text = _shortened(text)
            raise UsageError(f"--shape {name}={text}: give numbers, as in {name}=2,128")
        shapes[name] = tuple(map(int, extents))
    return shapes


CalibrationOption = Annotated[
    str | None,
    option(
        "--calibration FILE.npz|FOLDER",
        "Calibration data for int8 and auto: an .npz file with an array for each input, of "
        "the input's shape (one sample), or with another axis in front or a longer first axis "
        "(several samples); or a folder of such files. With dynamic shapes, each file or sample "
        "(0/x, 1/x, ...) may have another size.",
        PRECISION,
    ),
]
MethodOption = Annotated[
    str | None,
    option(
        "--calibration-method minmax|percentile[:P]|mse",
        "Calibration range: minmax, of all values; percentile, of the middle P % (default "
        "99.99); mse, with the smallest squared error [default: minmax].",
        PRECISION,
    ),
]
MaxErrorOption = Annotated[
    float | None,
    option(
        "--max-error E",
        "For auto, the maximum error of outputs against f32: max|y - f32| / max|f32|.",
        PRECISION,
    ),
]
MetricOption = Annotated[
    str | None,
    option(
        "--metric FILE.py:FUNCTION",
        "For auto, FUNCTION(outputs, labels), higher is better, instead of --max-error; "
        "outputs by name, all samples along the first axis.",
        PRECISION,
    ),
]
LabelsOption = Annotated[
    str | None, option("--labels FILE.npy", "Labels for --metric, one for each sample.", PRECISION)
]
MaxLossOption = Annotated[
    float | None, option("--max-loss L", "For auto, the maximum loss of --metric.", PRECISION)
]
PointOption = Annotated[
    int | None,
    option("--point N", "For auto, use this point of the measured trade-off.", PRECISION, min=0),
]


# The options of `tune`, as they are typed and as its jobs take them.

MOST_GAIN = 1000.0
"""Of `search.target_gain`: what is more is a mistake."""

if TYPE_CHECKING:
    from tunefarm.configs.settings import Settings


def _target_gain(speed_up: float | None) -> float | None:
    if speed_up is not None and not 1.0 < speed_up <= MOST_GAIN:
        raise UsageError(
            f"--target-gain is a speed-up above 1 and up to {MOST_GAIN:g}, as in 1.10 for 10 % "
            f"faster, not {speed_up:g}"
        )
    return speed_up


_SETTINGS: Mapping[str, str] = {
    "db": "database.url",
    "layers": "database.layers",
    "threads": "compile.threads",
    "denormals": "compile.denormals",
    "targets": "compile.targets",
    "machine": "compile.machine",
    "trials": "search.total_trials",
    "minutes": "search.minutes",
    "target_gain": "search.target_gain",
    "seed": "search.seed",
    "max_memory": "limits.memory",
    "runner": "measure.runner",
    "address": "measure.address",
    "cache": "cache.enabled",
}
"""The settings that options give, by the options' names in Python."""

_READERS: Mapping[str, Callable[[Any], Any]] = {
    "layers": _layer_names,
    "targets": target_names,
    "target_gain": _target_gain,
    "max_memory": _memory_bytes,
    "cache": lambda kept: None if kept else False,
}
"""What makes a setting of an option's value, where that is not the value itself."""


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings that a command's options ask for, by their names in Python.

    Raises UsageError and SettingsError for values that make no sense, alone or together.
    """
    from tunefarm.configs.settings import load_settings

    values = {
        setting: _READERS[name](given[name]) if name in _READERS else given[name]
        for name, setting in _SETTINGS.items()
        if name in given
    }
    precision = _precision_of(given["numerics"], given["deterministic"])
    return load_settings(given["config"], {**values, "compile.precision": precision})


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What a job is asked by options; a model may be missing."""

    model: str | None
    settings: Settings
    precision: PrecisionOptions
    shapes: Shapes


def tune_options(given: Mapping[str, Any]) -> TuneOptions:
    """The options by their names in Python, as `tune` takes them.

    Raises UsageError and SettingsError for values that make no sense, alone or together.
    """
    shapes, settings = model_shapes(given), settings_of(given)
    precision = PrecisionOptions(
        given["calibration"],
        given["calibration_method"],
        given["max_error"],
        given["metric"],
        given["labels"],
        given["max_loss"],
    )
    precision.check(settings.compile.numerics)
    return TuneOptions(given["model"], settings, precision, shapes)


def parsed_tune(arguments: Sequence[str]) -> typer.Context:
    """The context in which `tune` would run with these arguments: its options are the `params`.

    Raises UsageError for what it would refuse, and for anything that is no option.
    """
    from tunefarm.tuner.commands.cli import app

    command = typer.main.get_command(app)
    with command.make_context("tune", list(arguments), resilient_parsing=True) as context:
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    if rest:
        raise UsageError(f"{rest[0]!r} is not an option of tune (see tune --help)")
    with command.make_context("tune", list(arguments)) as context:
        return cast(typer.Context, context)
