"""Schedule steps, by what they do: arguments, loop nest before -> after, and meaning.

A class in a file of this folder is all that a new step needs: the file is imported here, and the
class makes itself known by its name.
"""

from importlib import import_module  # noqa: TID251 - a new file is found by itself
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
