"""Every knob, typed; the only reader of TOML files and of the environment.

`load_settings` lays four layers over each other, the later one wins: the defaults below, a preset
or a TOML file, the environment (`TUNEFARM_<SECTION>__<KEY>`, for example
`TUNEFARM_MEASURE__SLOTS=4` or `TUNEFARM_SEARCH__COST_MODEL__MAX_DEPTH=8`; values are written as in
TOML, strings may go without quotes), and the caller's overrides (the command line).
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import SettingsError
from configs.private_folder import writable_by_others
from configs.regular_file import read_regular

ENVIRONMENT_PREFIX = "TUNEFARM_"
_FOLDER = Path(__file__).resolve().parent
_SUGGESTION_CUTOFF = 0.5
_MOST_BYTES = 1 << 20  # of a settings file

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Bytes = Annotated[int, Field(ge=1, le=1 << 50)]
Duration = Annotated[float, Field(gt=0, le=1e7)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class CostModelSettings(_Section):
    """The gradient-boosted trees that rank proposals."""

    rounds: Count = 32
    """Boosting rounds of one training."""
    max_depth: Annotated[int, Field(ge=1, le=32)] = 6
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.25
    members: Annotated[int, Field(ge=1, le=64)] = 3
    """Models in the ensemble; how much they differ says how sure they are."""
    objective: Literal["squared", "pairwise", "ndcg"] = "squared"
    """Squared error on log-throughput, or a ranking of each kernel's candidates."""
    min_records: Count = 8
    """Measured trials before the model learns; it serves all kernels."""
    pool: Count = 1024
    """Proposals scored for each batch."""


class SearchSettings(_Section):
    """How schedules are proposed and when a search ends."""

    trials_per_task: Count = 256
    """Most trials of one distinct kernel."""
    total_trials: Count | None = None
    """Most trials of the whole job; None: no limit of its own."""
    minutes: Duration | None = None
    """Most wall-clock minutes of the whole job; None: no limit of its own."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 16
    """Candidates proposed, measured and learnt from together."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    sampler: str = "cost_model"
    """The strategy that proposes, by name: a file of `tuner/search/strategies`."""
    exploration: Share = 0.05
    """Share of each batch that is drawn at random, whatever the cost model says."""
    patience: Count = 96
    """A task ends after so many trials without a better latency."""
    min_gain: Share = 0.01
    """A task ends when its last 32 trials gained less than this and no more is predicted."""
    cost_model: CostModelSettings = CostModelSettings()


class MeasureSettings(_Section):
    """Where and how candidates are built, checked and timed."""

    runner: Literal["ray", "local"] = "ray"
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
    samples: Annotated[int, Field(ge=1, le=10_000)] = 7
    """Timed samples of one candidate."""
    min_sample_seconds: Duration = 0.01
    """Calls are repeated until one sample lasts this long."""
    unstable_above: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """A candidate whose samples scatter more (relative MAD) never wins."""
    build_timeout: Duration = 30.0
    """Seconds that lowering and compiling one candidate may take."""
    run_timeout: Duration = 15.0
    """Seconds that checking and timing one candidate may take."""


class CompileSettings(_Section):
    """What is compiled for; part of every record's key."""

    threads: Annotated[int, Field(ge=1, le=4096)] = 1
    numerics: Literal["strict", "default"] = "default"
    """`strict` excludes algorithms that change rounding, such as Winograd."""
    target: str | None = None
    """A named target (`configs/targets`) or a TOML file; None: this machine."""


class CacheSettings(_Section):
    """Where compiled kernels are kept for the next build."""

    folder: Annotated[str, Field(min_length=1)] | None = None
    """None: `tunefarm` in the user's folder for caches ($XDG_CACHE_HOME or ~/.cache)."""
    enabled: bool = True


class LimitSettings(_Section):
    """What importing and building a model may need; more is refused before it is asked for."""

    bytes: Bytes | None = None
    """Most memory of a value, of all constants, of a run; None: half of this machine's."""
    nodes: Count = 200_000
    """Most nodes, after functions and loops are unrolled."""
    rank: Annotated[int, Field(ge=1, le=64)] = 64
    """Most dimensions of a value."""
    seconds: Duration = 600.0
    """Most seconds that an import or a build may take."""


class DatabaseSettings(_Section):
    """Where records are kept."""

    url: Annotated[str, Field(min_length=1)] = "tuning.db"
    """A file name or an SQLAlchemy URL."""


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


class TargetSettings(_Section):
    """A named processor to compile for; the JSON values of a `compiler.target.Target`."""

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


def presets() -> tuple[str, ...]:
    """Names of the settings that come with the package."""
    return _names_in(_FOLDER)


def targets() -> tuple[str, ...]:
    """Names of the targets that come with the package."""
    return _names_in(_FOLDER / "targets")


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
    layers = _Layers()
    if preset_or_path is not None:
        path = _find_file(preset_or_path, _FOLDER, "preset")
        layers.add_table(_read_toml(path), _label(path))
    for key, value in _environment_values(os.environ if environment is None else environment):
        layers.add(key, value, _variable(key))
    for dotted, override in (overrides or {}).items():
        if override is not None:
            layers.add(tuple(dotted.split(".")), override, "option")
    return _validate(Settings, layers)


def files_read(preset_or_path: str | None, settings: Settings) -> list[Path]:
    """The files that the settings were read from, and those that they name to be read."""
    files = [] if preset_or_path is None else [_find_file(preset_or_path, _FOLDER, "preset")]
    if settings.compile.target is not None:
        files.append(_find_file(settings.compile.target, _FOLDER / "targets", "target"))
    if settings.measure.token_file is not None:
        files.append(Path(settings.measure.token_file))
    return files


def cache_folder(settings: Settings) -> Path | None:
    """Where compiled kernels are kept; None if they are not, or there is no folder for them.

    A folder that others may write to is none: what is in it is code.
    """
    folder = _named_cache_folder(settings)
    return None if folder is None or writable_by_others(folder) else folder


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
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "tunefarm"
    except RuntimeError:  # a user without a home, as in some containers
        return None


def load_target(name_or_path: str) -> TargetSettings:
    """A named target of `configs/targets`, or one read from a TOML file. Raises SettingsError."""
    path = _find_file(name_or_path, _FOLDER / "targets", "target")
    layers = _Layers()
    layers.add_table(_read_toml(path), _label(path))
    return _validate(TargetSettings, layers)


class _Layers:
    """A tree of values under construction, and where each value came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._sources: dict[tuple[str, ...], str] = {}
        self._file = "settings"

    def add_table(self, table: Mapping[str, object], source: str) -> None:
        self._file = source
        for key, value in _leaves(table):
            self.add(key, value, source)

    def add(self, key: tuple[str, ...], value: object, source: str) -> None:
        table = self.values
        for part in key[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[key[-1]] = value
        self._sources[key] = source

    def source(self, key: tuple[str, ...]) -> str:
        """Where the value at `key`, the nearest one above or the first one below came from."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._sources:
                return self._sources[key[:length]]
        return self._sources.get(self.first_leaf(key), self._file)

    def first_leaf(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """The first value given at or below `key`."""
        return next((leaf for leaf in self._sources if leaf[: len(key)] == key), key)


def _leaves(table: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value of a nested table with its key path; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            for rest, leaf in _leaves(value):
                yield (key, *rest), leaf
        else:
            yield (key,), value


def _environment_values(
    environment: Mapping[str, str],
) -> Iterator[tuple[tuple[str, ...], object]]:
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        key = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        yield key, _scalar(environment[name])


def _scalar(text: str) -> object:
    """The text as a TOML value, or as a string if it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError):
        return text


def _variable(key: tuple[str, ...]) -> str:
    return ENVIRONMENT_PREFIX + "__".join(key).upper()


def _names_in(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def _find_file(name_or_path: str, folder: Path, kind: str) -> Path:
    if name_or_path in _names_in(folder):
        return folder / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if "\0" in name_or_path:
        raise SettingsError(f"{name_or_path!r} is not a file name")
    if path.is_dir() and name_or_path:
        raise SettingsError(f"{name_or_path} is a folder, not a settings file")
    if path.exists() and name_or_path:
        return path
    if path.suffix == ".toml" or path.name != name_or_path:
        raise SettingsError(f"no such settings file: {name_or_path}")
    raise SettingsError(
        f"unknown {kind} {name_or_path!r}", hint=_suggestion(name_or_path, _names_in(folder))
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path, _MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not a text file (UTF-8)") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or an integer too long
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _label(path: Path) -> str:
    return path.name if path.parent in (_FOLDER, _FOLDER / "targets") else str(path)


def _suggestion(name: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_SUGGESTION_CUTOFF)
    if nearest:
        return f"did you mean {nearest[0]}?"
    return f"known: {', '.join(known)}"


def refuse_unknown(key: str, name: str, known: Sequence[str]) -> None:
    """Raises SettingsError, with the nearest one, if the setting's value is none of these names."""
    if name not in known:
        raise SettingsError(f"{key} = {_short(name)}: unknown", hint=_suggestion(name, known))


_Model = TypeVar("_Model", bound=BaseModel)


def _validate(model: type[_Model], layers: _Layers) -> _Model:
    try:
        return model.model_validate(layers.values)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        unknown = [p for p in problems if p["type"] == "extra_forbidden"]
        problem = (unknown or problems)[0]
        key = tuple(str(part) for part in problem["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        if unknown:
            key = layers.first_leaf(key)
            message = f"{layers.source(key)}: unknown key {'.'.join(key)}{more}"
            raise SettingsError(message, hint=_nearest_key(model, key)) from None
        key = _without_branches(model, key)
        reason = problem["msg"][0].lower() + problem["msg"][1:]
        if problem["type"] == "model_type":
            reason = "this is a section, its keys are set one by one"
        where = f"{layers.source(key)}: {'.'.join(key)}"
        if problem["type"] == "missing":
            raise SettingsError(f"{where} is missing{more}") from None
        raise SettingsError(f"{where} = {_short(problem['input'])}: {reason}{more}") from None
    except OverflowError as error:
        raise SettingsError(f"a number is out of range: {error}") from error


def _without_branches(model: type[BaseModel], key: tuple[str, ...]) -> tuple[str, ...]:
    """The key path alone: pydantic appends positions and branches of unions to it."""
    here: Any = model
    for length, part in enumerate(key):
        if not (isinstance(here, type) and issubclass(here, BaseModel)):
            return key[:length]
        field = here.model_fields.get(part)
        here = field.annotation if field else None
    return key


def _nearest_key(model: type[BaseModel], unknown: tuple[str, ...]) -> str:
    """What to write instead: the nearest key or section, or else the list of sections."""
    name = ".".join(unknown)
    sections = list(model.model_fields)
    known = list(sections) if len(unknown) == 1 else []
    known += [key for key in map(".".join, _keys(model)) if key not in known]
    if difflib.get_close_matches(name, known, n=1, cutoff=_SUGGESTION_CUTOFF):
        return _suggestion(name, known)
    return _suggestion(name, sections)


def _keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(inner, (*prefix, name))
        else:
            yield (*prefix, name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
