"""Schedule steps, one a file: arguments, loop nest before -> after, and meaning.

A file in this folder is all that a new step needs: it is imported here, and its class makes itself
known by its name.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
