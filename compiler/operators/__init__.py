"""The graph's operators; importing the package registers all of them.

Its modules are found by looking: a new family of operators is a file here, and no list's entry.
"""

from importlib import import_module  # noqa: TID251 - a new file is found by itself
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
