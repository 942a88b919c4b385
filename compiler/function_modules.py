"""Python modules that register custom operators when they are imported.

A command line loads them by `--functions`; the processes that it starts load the same ones, so
that a model means the same to whoever reads it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from tunefarm.compiler.errors import SettingsError

_LOADED: dict[str, str] = {}  # the digest of its file


def loaded_modules() -> tuple[str, ...]:
    """Those that were loaded: the absolute paths of files, and names; another process's to load."""
    return tuple(_LOADED)


def modules_digests() -> list[str]:
    """The SHA-256 of each loaded module's file, in the order of loading."""
    return list(_LOADED.values())


def load_modules(modules: Iterable[str]) -> None:
    """Import each module, a file `….py` or a dotted name, once.

    Raises `SettingsError` for one that is missing, that raises, or that registers no function.
    """
    for given in modules:
        is_file = given.endswith(".py") or os.sep in given
        module = str(Path(given).absolute()) if is_file else given
        if module in _LOADED:
            continue
        from tunefarm.compiler.foreign_functions import registered_functions  # it needs NumPy

        before = registered_functions()
        try:
            load = _import_file if is_file else importlib.import_module  # noqa: TID251 - named by users
            imported = load(module)
        except SettingsError as error:
            raise SettingsError(f"--functions {given}: {error.message}", hint=error.hint) from error
        except (Exception, SystemExit) as error:  # it is not ours
            raise SettingsError(
                f"--functions {given}: importing it raised {type(error).__name__}: {error}"
            ) from error
        if registered_functions() == before:
            raise SettingsError(
                f"--functions {given} registers no function",
                hint="it has to call tunefarm.register_function when it is imported",
            )
        _LOADED[module] = _digest(imported)


def _digest(module: ModuleType) -> str:
    file = module.__file__
    return hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest()


def _import_file(path: str) -> ModuleType:
    """Import a file as a module of its name, which is not looked for anywhere else."""
    if not Path(path).is_file():
        raise SettingsError("there is no such file")
    name = f"functions_of_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError("it is no Python file", hint="give a file ….py, or a module's name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
