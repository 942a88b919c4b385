"""Values from files, the environment and options, laid over each other; whose a wrong one is."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from tunefarm.configs.errors import SettingsError, system_errors_as
from tunefarm.configs.files import read_regular

ENVIRONMENT_PREFIX = "TUNEFARM_"
_HERE = Path(__file__).resolve().parent
_SUGGESTION_CUTOFF = 0.5
_MOST_BYTES = 1 << 20  # of a settings file

Key: TypeAlias = tuple[str, ...]

FORMER_KEYS: dict[Key, Key] = {("compile", "numerics"): ("compile", "precision")}
"""Settings by their former names: they work, and no message or page shows them."""
Model = TypeVar("Model", bound=BaseModel)


class Layers:
    """Values by key, later ones over former ones, and where each came from."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sources: dict[Key, str] = {}
        self._names: dict[tuple[str, Key], Key] = {}  # as each layer has it, by layer and key
        self._file = "settings"

    def add_file(self, path: Path) -> None:
        """Add a TOML file's values. Raises SettingsError if it cannot be read."""
        self._file = path.name if path.parent in (_HERE, _HERE / "targets") else str(path)
        for key, value in _leaves(_read_toml(path)):
            self.add(key, value, self._file)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add the values of the variables whose names begin with the prefix."""
        for name in sorted(environment):
            if name.startswith(ENVIRONMENT_PREFIX):
                key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
                source = ENVIRONMENT_PREFIX + "__".join(key).upper()
                self.add(tuple(key), _scalar(environment[name]), source)

    def add(self, key: Key, value: object, source: str) -> None:
        """Add one value. Raises SettingsError where one source has both names of a setting."""
        given, key = key, FORMER_KEYS.get(key, key)
        layer = ENVIRONMENT_PREFIX if source.startswith(ENVIRONMENT_PREFIX) else source
        other = self._names.setdefault((layer, key), given)
        if other != given:
            both = f"{'.'.join(other)} and {'.'.join(given)}"
            raise SettingsError(f"{source}: {both} are the same setting", hint="give one of them")
        table = self._values
        for part in key[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[key[-1]] = value
        self._sources[key] = source

    def validated(self, model: type[Model]) -> Model:
        """The values as a model. Raises SettingsError for one of them that it refuses."""
        try:
            return model.model_validate(self._values)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
        except OverflowError as error:
            raise SettingsError(f"a number is out of range: {error}") from error
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
        problem = (unknown or problems)[0]
        key = tuple(str(part) for part in problem["loc"])
        if unknown:
            key = self._first_leaf(key)
            message = f"{self._source(key)}: unknown key {'.'.join(key)}{more}"
            raise SettingsError(message, hint=_nearest_key(model, key))
        key = _without_branches(model, key)
        where = f"{self._source(key)}: {'.'.join(key)}"
        if problem["type"] == "missing":
            raise SettingsError(f"{where} is missing{more}")
        reason = problem["msg"][0].lower() + problem["msg"][1:]
        if problem["type"] == "model_type":
            reason = "this is a section, its keys are set one by one"
        hint = _nearest_word(problem["input"], reason) if problem["type"] == "literal_error" else ""
        raise SettingsError(f"{where} = {_short(problem['input'])}: {reason}{more}", hint=hint)

    def _source(self, key: Key) -> str:
        """Where the value at `key`, the nearest one above or the first one below came from."""
        for length in range(len(key), 0, -1):
            if key[:length] in self._sources:
                return self._sources[key[:length]]
        return self._sources.get(self._first_leaf(key), self._file)

    def _first_leaf(self, key: Key) -> Key:
        """The first value given at or below `key`."""
        return next((leaf for leaf in self._sources if leaf[: len(key)] == key), key)


def names_in(folder: Path) -> tuple[str, ...]:
    """Names of the TOML files in a folder."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def find_file(name_or_path: str, folder: Path, kind: str) -> Path:
    """The file of that name in `folder`, or at that path. Raises SettingsError if there is none."""
    if name_or_path in names_in(folder):
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
    hint = suggestion(name_or_path, names_in(folder))
    raise SettingsError(f"unknown {kind} {name_or_path!r}", hint=hint)


def suggestion(name: str, known: Sequence[str]) -> str:
    """What may be meant by a name that is none of these."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=_SUGGESTION_CUTOFF)
    return f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"


def refuse_unknown(key: str, name: str, known: Sequence[str]) -> None:
    """Raises SettingsError, with the nearest one, if the setting's value is none of these names."""
    if name not in known:
        raise SettingsError(f"{key} = {_short(name)}: unknown", hint=suggestion(name, known))


def _leaves(table: Mapping[str, object]) -> Iterator[tuple[Key, object]]:
    """Every value of a nested table with its key path; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            for rest, leaf in _leaves(value):
                yield (key, *rest), leaf
        else:
            yield (key,), value


def _scalar(text: str) -> object:
    """The text as a TOML value, or as a string if it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError):
        return text


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with system_errors_as(SettingsError, f"read {path}"):
            content = read_regular(path, _MOST_BYTES)
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not a text file (UTF-8)") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or an integer too long
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _without_branches(model: type[BaseModel], key: Key) -> Key:
    """The key path alone: pydantic appends positions and branches of unions to it."""
    return next((path for path in _keys(model) if key[: len(path)] == path), key)


def _nearest_key(model: type[BaseModel], unknown: Key) -> str:
    """What to write instead: the nearest key or section, or else the list of sections."""
    name = ".".join(unknown)
    sections = list(model.model_fields)
    known = [*(sections if len(unknown) == 1 else ()), *map(".".join, _keys(model))]
    near = difflib.get_close_matches(name, known, n=1, cutoff=_SUGGESTION_CUTOFF)
    return suggestion(name, known if near else sections)


def _keys(model: type[BaseModel]) -> Iterator[Key]:
    """The key paths of all values of a model."""
    for attribute, field in model.model_fields.items():
        name = field.validation_alias if isinstance(field.validation_alias, str) else attribute
        kinds = (field.annotation, *get_args(field.annotation))  # a section may be left out
        sections = [
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        for section in sections:
            yield from ((name, *rest) for rest in _keys(section))
        if not sections:
            yield (name,)


def _nearest_word(value: object, reason: str) -> str:
    """What may be meant by a value that is none of the words in the reason's quotes."""
    near = difflib.get_close_matches(
        str(value), re.findall("'([^']*)'", reason), n=1, cutoff=_SUGGESTION_CUTOFF
    )
    return f"did you mean {near[0]}?" if near else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
