"""Packages: the build backend that pyproject.toml names, and what each distribution has.

    pip install .                                        tunefarm: all of it
    pip wheel . --config-settings edition=runtime        tunefarm-runtime: what runs built models

Nothing of this is imported by what is installed.
"""
