"""Every knob, typed; the only reader of TOML files and of the environment.

`load_settings` lays four layers over each other, the later one wins: the defaults below, a preset
or a TOML file, the environment (`TUNEFARM_<SECTION>__<KEY>`, for example
`TUNEFARM_MEASURE__SLOTS=4` or `TUNEFARM_SEARCH__COST_MODEL__MAX_DEPTH=8`; values are written as in
TOML, strings may go without quotes), and the caller's overrides (the command line).

pydantic-settings would do less: it cannot tell where a wrong value came from, passes over unknown
sections in the environment, and takes as long to import as a tenth of a repeated build.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tunefarm.configs.errors import SettingsError
from tunefarm.configs.layers import Layers, find_file, names_in
from tunefarm.configs.private_folder import make_private, writable_by_others

_SERVED: Final = {
    "host": "native",
    "x86-64-v2": "nehalem westmere silvermont goldmont sandybridge ivybridge",
    "x86-64-v3": "haswell broadwell skylake alderlake znver1 znver2 zen zen2",
    "skylake-avx512": "skx",
    "cascadelake": "cooperlake",
    "icelake-server": "icelake-client rocketlake tigerlake",
    "sapphirerapids": "emeraldrapids graniterapids",
    "znver3": "zen3",
    "znver4": "zen4",
    "znver5": "zen5",
    "armv8-neon": "aarch64 arm64 armv8 armv8-a cortex-a53 cortex-a72 graviton rpi4",
    "neoverse-n1": "cortex-a76 cortex-a78 graviton2 altra apple-m1 rpi5",
    "neoverse-v1": "neoverse-n2 neoverse-v2 graviton3 graviton4 grace apple-m2 apple-m3 apple-m4",
}

SERVED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {name: target for target, names in _SERVED.items() for name in names.split()}
)
"""The named target whose code such a CPU runs best, by its name in small letters, as LLVM
and others have it. Each CPU has all that the target needs."""


_PRESETS = Path(__file__).resolve().parent
_TARGETS = _PRESETS / "targets"

HOST = "host"
"""Stands for this machine among the names of targets."""

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Bytes = Annotated[int, Field(ge=1, le=1 << 50)]
Duration = Annotated[float, Field(gt=0, le=1e7)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1e4)]
"""Bytes or instructions a cycle of the core's clock."""
Cycles = Annotated[float, Field(gt=0, le=1e7)]

_KEPT_AS = {"fp16": "f16"}
"""Values of `compile.precision` that records and JSON keep under a former name."""
_SHOWN_AS = {kept: shown for shown, kept in _KEPT_AS.items()}
Precision = Annotated[
    Literal[
        "strict", "default", "deterministic", "int8-activations", "bf16", "fp16", "int8", "auto"
    ],
    BeforeValidator(lambda value: shown_precision(value) if isinstance(value, str) else value),
    AfterValidator(lambda value: _KEPT_AS.get(value, value)),
]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_by_name=True,
        validate_by_alias=True,
    )


class CostModelSettings(_Section):
    """The gradient-boosted trees that rank proposals."""

    rounds: Count = 32
    """Boosting rounds of one training."""
    max_depth: Annotated[int, Field(ge=1, le=32)] = 6
    """Maximum depth of a tree."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Weight of each new tree."""
    members: Annotated[int, Field(ge=1, le=64)] = 3
    """Models in the ensemble; how much they differ says how sure they are."""
    min_records: Count = 8
    """Measured trials before the model learns; it serves all kernels."""
    pool: Count = 1024
    """Proposals scored for each batch."""


class SearchSettings(_Section):
    """How schedules are proposed and when a search ends."""

    trials_per_task: Count = 256
    """Trials of a distinct kernel on average: a kernel that ends early leaves its to those that
    still gain."""
    total_trials: Count | None = None
    """Most trials of the whole job; None: no limit of its own."""
    minutes: Duration | None = None
    """Most wall-clock minutes of the whole job; None: no limit of its own."""
    target_gain: Annotated[float, Field(gt=1, le=1000)] | None = None
    """Speed-up of the whole model over the untuned one at which the job stops, once it was
    confirmed (1.1 is 10 % faster); None: at none."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 16
    """Candidates proposed, measured and learnt from together."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    """Seed of all random choices of the search."""
    sampler: str = "cost_model"
    """The strategy that proposes, by name: a file of `tuner/search/strategies`."""
    exploration: Share = 0.05
    """Share of each batch that is drawn at random, whatever the cost model says."""
    patience: Count = 96
    """A task ends after so many trials without a better latency."""
    min_gain: Share = 0.01
    """A task ends when its last 32 trials gained less than this and no more is predicted."""
    nothing_to_win: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """A task ends when neither what was measured nor the cost model promises that much of its time
    (0.02 is 2 %), after 32 trials at least; 0: never for that."""
    cost_model: CostModelSettings = CostModelSettings()


class MeasureSettings(_Section):
    """Where and how candidates are built, checked and timed."""

    runner: str = "ray"
    """A name of `tunefarm.measure.farm.make_runner`: ray or local."""
    address: str | None = None
    """Address of a Ray cluster to join; None: an embedded one on this machine."""
    token_file: str | None = None
    """File with the token of that cluster; None: what RAY_AUTH_MODE and its kin say."""
    overlap: Literal["auto", "always", "never"] = "auto"
    """Whether cores build while others time; auto: if a trial at the start shows no disturbance."""
    slots: Count = 1
    """Candidates timed at the same time; each slot has its cores to itself."""
    builders: Count | None = None
    """Candidates built at the same time; None: as many as cores."""
    samples: Annotated[int, Field(ge=4, le=1000)] = 14
    """Slices of each side, the candidate and its reference; twice as many on a noisy machine."""
    min_sample_seconds: Annotated[float, Field(ge=1e-5, le=1.0)] = 0.002
    """Length of a slice: calls are repeated until one lasts this long."""
    unstable_above: Annotated[float, Field(ge=0.001, le=1.0)] = 0.075
    """A candidate is noisy if its slices, as ratios to those of a quiet reference,
    spread more than this (two thirds of them about their median)."""
    build_timeout: Duration = 30.0
    """Seconds that lowering and compiling one candidate may take."""
    run_timeout: Duration = 15.0
    """Seconds that checking and timing one candidate may take."""


class CompileSettings(_Section):
    """What is compiled for; part of every record's key, unless said otherwise."""

    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    """Threads that one run of the model uses. Tune with the number that you serve with."""
    numerics: Precision = Field(default="default", validation_alias="precision")
    """Written `compile.precision`. `strict` excludes algorithms that change rounding, such as
    Winograd. `deterministic` computes the same bits with any schedule, number of threads and CPU of
    a family (x86-64 with FMA, or 64-bit Arm), and chains no kernels. `int8-activations`
    rounds what weights of 2 to 8 bits are multiplied with to 8 bits. `bf16` and `fp16` compute each
    matmul/conv, and what lies between them, in that type with sums in f32. `int8` multiplies 8-bit
    integers, `auto` uses what was chosen for each matmul/conv."""
    denormals: Literal["flush", "keep"] = "flush"
    """What becomes of numbers too small to be normal: zeros in what is computed, or what IEEE 754
    says, which most CPUs take many times as long for. No part of a record's key."""
    target: str | None = None
    """A named target (`configs/targets`) or a TOML file; None: this machine."""
    targets: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Several of these, for one artifact or one job; `host` is this machine. They stand for
    `target`, which is not given then."""
    machine: Annotated[str, Field(min_length=1)] | None = None
    """A file of `tune doctor --calibrate`: what one of the targets is like. None: what the table
    that comes with the package says. No part of a record's key."""


class CacheSettings(_Section):
    """Where compiled kernels are kept for the next build."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """None: `tunefarm` in the user's folder for caches ($XDG_CACHE_HOME or ~/.cache)."""
    enabled: bool = True
    """Whether the cache is read and written."""


class LimitSettings(_Section):
    """What importing and building a model may need; more is refused before it is asked for."""

    bytes: Bytes | None = None
    """Most memory of a value, of all constants, of a run; None: half of this machine's."""
    memory: Bytes | None = None
    """Maximum memory of a run without constants, inputs and outputs; None: no limit of its own."""
    nodes: Count = 200_000
    """Most nodes, after functions and loops are unrolled."""
    rank: Annotated[int, Field(ge=1, le=64)] = 64
    """Most dimensions of a value."""
    seconds: Duration = 600.0
    """Most seconds that an import or a build may take."""
    loop_steps: Count = 1_000_000
    """Most steps of a loop whose end is computed at run time."""
    loop_rows: Count = 1024
    """Most of them where each gives something that is kept, or makes something larger; and most
    elements of a Range whose end is computed."""


class DatabaseSettings(_Section):
    """Where records are kept."""

    url: Annotated[str, Field(min_length=1)] = "tuning.db"
    """A file name or an SQLAlchemy URL."""
    layers: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """More databases that builds ask, after that of `url`, in this order: only read."""
    shipped: bool = True
    """Whether builds ask the records that come with the package, behind all others."""


class Settings(_Section):
    """All settings of one job."""

    search: SearchSettings = SearchSettings()
    measure: MeasureSettings = MeasureSettings()
    compile: CompileSettings = CompileSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = LimitSettings()
    database: DatabaseSettings = DatabaseSettings()

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON values, for the record of a job."""
        return self.model_dump(mode="json")


class _Level(_Section):
    """A level of cache, or memory behind all of them, as one core sees it."""

    read: Rate
    """Bytes a cycle in one long stream: loaded from the first level, moved nearer from others."""
    write: Rate
    """Bytes a cycle that are written in one long stream."""
    latency: Cycles
    """Cycles from an address to its value."""
    interleaved: Rate | None = None
    """Bytes a cycle of operands that tiles read between others; None: a third of `read`, as 4 and
    16 of the 12 and 48 bytes of memory and L2 came on a Zen 5."""

    @property
    def of_tiles(self) -> float:
        """`interleaved`, as it is taken to be."""
        return self.interleaved or self.read / 3.0


class CacheTable(_Level):
    """A level of cache; its size is the target's."""

    line_bytes: Annotated[int, Field(ge=16, le=1024)] = 64
    """Bytes of a line."""
    ways: Annotated[int, Field(ge=1, le=64)]
    """Lines whose addresses fall on the same set."""
    stride: Annotated[int, Field(ge=16, le=1 << 20)] | None = None
    """Bytes that a loop may step through in a turn and still be read ahead of; None: any."""
    crowded: Annotated[float, Field(ge=1, le=10)] | None = None
    """Times as long take products whose data lies whole pages apart, in few sets; None: once."""

    @property
    def round_trip(self) -> float:
        """Bytes a cycle that are written and read again."""
        return 1.0 / (1.0 / self.read + 1.0 / self.write)


class MemoryTable(_Level):
    """Memory behind all caches."""

    streams: Annotated[float, Field(ge=1, le=1024)]
    """Cores that read at the speed of one core together; more of them wait for memory."""
    ahead: Annotated[int, Field(ge=0, le=1 << 16)] | None = None
    """Bytes ahead that code asks for packed weights that it streams; 0: the hardware does it
    sooner; None: 4096 for weights of a few bits, as on a Zen 5, none for others."""


class VectorTable(_Section):
    """What a core does with whole vectors of the target."""

    fma: Rate
    """Multiply-adds of f32 that start in a cycle."""
    fma_latency: Cycles
    """Cycles until a multiply-add can be added to."""
    dot: Rate
    """Dot products of 8-bit integers that start in a cycle; on a CPU without, multiply-adds."""
    convert: Cycles
    """Cycles to load a vector of bf16 and make it f32."""
    gather: Cycles
    """Cycles to load a vector of f32 from anywhere in the first-level cache."""
    short_functions: bool = False
    """Whether e^x and tanh were measured to be faster by the code of the step ShortFunctions."""


class TileTable(_Section):
    """What a core does with matrix tiles (AMX) in full size."""

    product: Cycles
    """Cycles between the starts of two products."""
    latency: Cycles
    """Cycles until the next product can add to the same sums."""
    load: Cycles
    """Cycles to load a row of a tile from the first-level cache."""


class ThreadTable(_Section):
    """What it costs to share work."""

    hand_over: Cycles
    """Cycles until a second thread is at work, and both have met again."""


class Machine(_Section):
    """The table of a CPU: what data and arithmetic cost on one core, in its cycles.

    It stands next to a target and is no part of it: measuring it changes no record's key.
    """

    source: Annotated[str, Field(min_length=1, max_length=300)]
    """Where the numbers are from: measured on which CPU, or estimated from what."""
    l1: CacheTable
    l2: CacheTable
    l3: CacheTable
    memory: MemoryTable
    vectors: VectorTable
    tiles: TileTable = TileTable(product=16.0, latency=52.0, load=0.5)
    """The default is that of Intel's optimization reference manual, chapter on AMX."""
    threads: ThreadTable

    @property
    def digest(self) -> str:
        """16 hex characters that tell tables apart; the source does not count."""
        numbers = self.model_dump(mode="json", exclude={"source"}, exclude_none=True)
        return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


class MachineFile(_Section):
    """What `tune doctor --calibrate` writes, and `--machine` reads."""

    version: Literal[1]
    """Of the file's format."""
    target: Annotated[str, Field(min_length=1, max_length=200)]
    """The key of the target that it was measured for."""
    machine: Machine

    def to_toml(self) -> str:
        """The file's text; what follows `[machine]` is a table as in `configs/targets`."""
        lines = [
            f"version = {self.version}",
            f"target = {json.dumps(self.target)}",
            "",
            "[machine]",
        ]
        for name, value in self.machine.model_dump(mode="json", exclude_none=True).items():
            if isinstance(value, dict):
                numbers = ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items())
                lines.append(f"{name} = {{ {numbers} }}")
            else:
                lines.append(f"{name} = {json.dumps(value)}")
        return "\n".join(lines) + "\n"


class TargetSettings(_Section):
    """A named processor to compile for; the JSON values of a `tunefarm.compiler.target.Target`."""

    triple: Annotated[str, Field(min_length=1)]
    cpu: Annotated[str, Field(min_length=1)]
    features: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of all LLVM processor features that code may use, sorted.

    What `cpu` implies beyond them is not used."""
    lanes: Annotated[int, Field(ge=1, le=64)]
    """f32 lanes of one vector."""
    vector_registers: Annotated[int, Field(ge=1, le=256)]
    l1_bytes: Bytes
    l2_bytes: Bytes
    l3_bytes: Annotated[int, Field(ge=0, le=1 << 50)]
    cores: Annotated[int, Field(ge=1, le=4096)]
    tile_palette: Annotated[
        tuple[
            Annotated[int, Field(ge=1, le=8)],
            Annotated[int, Field(ge=1, le=16)],
            Annotated[int, Field(ge=4, le=64, multiple_of=4)],
        ],
        Field(strict=False),
    ] = (8, 16, 64)
    """Matrix tiles, rows of each and bytes of a row; of no meaning without the feature amx-tile."""
    machine: Annotated[Machine | None, Field(exclude=True)] = None
    """What code costs on the CPU; None: what it costs on the named target that is most like it."""


def shown_precision(name: str) -> str:
    """A precision as users read and type it; records and JSON keep fp16 as f16."""
    return _SHOWN_AS.get(name, name)


def presets() -> tuple[str, ...]:
    """Names of the settings that come with the package."""
    return names_in(_PRESETS)


def targets() -> tuple[str, ...]:
    """Names of the targets that come with the package."""
    return names_in(_TARGETS)


def load_settings(
    preset_or_path: str | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a job.

    `preset_or_path` names a preset (`quick`) or a TOML file. Keys of `overrides` are dotted
    (`search.trials_per_task`); a value of None means "not given". `environment` replaces the
    process's own in tests.

    Raises SettingsError for an unknown preset, a file that cannot be read or is not TOML, an
    unknown key (with the nearest real one) and a value of the wrong type or range.
    """
    layers = Layers()
    if preset_or_path is not None:
        layers.add_file(find_file(preset_or_path, _PRESETS, "preset"))
    layers.add_environment(os.environ if environment is None else environment)
    for dotted, override in (overrides or {}).items():
        if override is not None:
            layers.add(tuple(dotted.split(".")), override, "option")
    return layers.validated(Settings)


def load_target(name_or_path: str) -> TargetSettings:
    """A named target of `configs/targets`, or one read from a TOML file.

    Raises SettingsError, for a CPU of another name with the target whose code it runs best.
    """
    layers = Layers()
    layers.add_file(_target_file(name_or_path))
    return layers.validated(TargetSettings)


@cache
def shipped_machine(cpu: str, architecture: str, lanes: int) -> Machine:
    """The table that comes with the package for the CPU of this name, as LLVM has it.

    That of the target that serves such a CPU; where its vectors have another number of f32 `lanes`,
    or there is none, that of any CPU of the `architecture` (`x86_64`, `aarch64`) with such vectors.
    """
    of_vectors = {4: "x86-64-v2", 8: "x86-64-v3"}.get(lanes, "x86-64-v4")
    alike = load_target("armv8-neon" if architecture == "aarch64" else of_vectors)
    name = cpu if cpu in targets() else SERVED_BY.get(cpu.lower(), HOST)
    own = alike if name == HOST else load_target(name)
    machine = own.machine if own.lanes == lanes else alike.machine
    assert machine is not None, f"the target {own.cpu} has no table"
    return machine


def load_machine(path: str) -> MachineFile:
    """The table that `tune doctor --calibrate` wrote to a file.

    Raises SettingsError for a file that cannot be read, of another version, or with a number that
    no CPU has.
    """
    if not Path(path).is_file():
        raise SettingsError(
            f"no such table of a machine: {path}",
            hint=f"tune doctor --calibrate --output {path} measures one",
        )
    layers = Layers()
    try:
        layers.add_file(Path(path))
        return layers.validated(MachineFile)
    except SettingsError as error:
        again = f"measure it again: tune doctor --calibrate --output {path}"
        raise SettingsError(error.message, hint=error.hint or again) from None


def _target_file(name_or_path: str) -> Path:
    serving = SERVED_BY.get(name_or_path.lower())
    if serving is not None and not Path(name_or_path).exists():
        raise SettingsError(
            f"unknown target {name_or_path!r}",
            hint=f"take {serving}, the best there is for that CPU",
        )
    return find_file(name_or_path, _TARGETS, "target")


def files_read(preset_or_path: str | None, settings: Settings) -> list[Path]:
    """The files that the settings were read from, and those that they name to be read."""
    files = [] if preset_or_path is None else [find_file(preset_or_path, _PRESETS, "preset")]
    named = [settings.compile.target, *settings.compile.targets]
    files += [_target_file(name) for name in named if name not in (None, HOST)]
    others = (settings.compile.machine, settings.measure.token_file)
    files += [Path(name) for name in others if name is not None]
    return files


def completion_asked(variable: str) -> str:
    """What a shell asks for that completes a command line, in this variable; "" if none asks."""
    return os.environ.get(variable, "")


def names_database(settings: Settings) -> bool:
    """Whether a file, the environment or the caller said which database, not the default alone."""
    return "url" in settings.database.model_fields_set


def has_database(settings: Settings) -> bool:
    """Whether a database was named, or the usual one is there."""
    return names_database(settings) or Path(settings.database.url).exists()


def cache_folder(settings: Settings) -> Path | None:
    """Where compiled kernels are kept; None if they are not, or there is no folder for them.

    A folder that others may write to is none: what is in it is code.
    """
    folder = _named_cache_folder(settings)
    return None if folder is None or writable_by_others(folder) else folder


def state_folder() -> Path:
    """Where this program notes what outlives a command: what `tune farm` has started.

    `tunefarm` in the user's folder for such notes ($XDG_STATE_HOME or ~/.local/state); where that
    cannot be made, as for users of containers without a home, in the folder for temporary files.
    Raises SettingsError where that cannot be made either, or others could change what is there.
    """
    folder = _folder_of_user("XDG_STATE_HOME", ".local/state")
    if folder is not None and _can_be_made(folder):
        return folder
    folder = Path(tempfile.gettempdir(), f"tunefarm-{os.geteuid()}", "state")
    try:
        make_private(folder)
        problem = writable_by_others(folder)
    except OSError as error:
        problem = f"{folder}: {error.strerror or error}"
    if problem:
        raise SettingsError(
            f"there is no folder to keep notes in: {problem}",
            hint="XDG_STATE_HOME names a folder",
        )
    return folder


def cache_problem(settings: Settings) -> str:
    """Why the folder for compiled kernels is not used and what to do; "" if it is used."""
    folder = _named_cache_folder(settings)
    problem = "" if folder is None else writable_by_others(folder)
    if not problem:
        return ""
    return f"nothing is taken from or kept in the cache {folder}: {problem}, or set cache.folder"


def _named_cache_folder(settings: Settings) -> Path | None:
    if not settings.cache.enabled:
        return None
    if settings.cache.folder is not None:
        return Path(settings.cache.folder)
    return _folder_of_user("XDG_CACHE_HOME", ".cache")


def _folder_of_user(variable: str, below_home: str) -> Path | None:
    """`tunefarm` in a folder of the XDG base directories, or None without a home.

    Those directories are absolute; a variable with another path counts as not set
    (https://specifications.freedesktop.org/basedir-spec/latest/).
    """
    named = os.environ.get(variable, "")
    if os.path.isabs(named):
        return Path(named, "tunefarm")
    home = os.path.expanduser("~")
    return Path(home, below_home, "tunefarm") if os.path.isabs(home) else None


def _can_be_made(folder: Path) -> bool:
    """Whether this user may make a folder, or write to it if it is there.

    Where the user may not look, there is nothing.
    """
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    can_write = os.access(
        folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    )
    return os.path.isdir(folder) and can_write
