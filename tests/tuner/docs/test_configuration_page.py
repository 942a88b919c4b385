"""The configuration reference: every setting, with its type, default, variable and description."""

from __future__ import annotations

import re

from pydantic import BaseModel

from tunefarm.configs.settings import Settings, load_settings
from tunefarm.tuner.docs.references import configuration_page, field_documentation

PAGE = configuration_page()
_ENTRY = re.compile(r"^### (\S+)\n\n(.*?)(?=^##|\Z)", re.M | re.S)


def settings_below(section: BaseModel, path: str = "") -> dict[str, object]:
    """The default of every setting by its dotted name."""
    found: dict[str, object] = {}
    for field, info in type(section).model_fields.items():
        value = getattr(section, field)
        name = str(info.validation_alias or field)
        if isinstance(value, BaseModel):
            found |= settings_below(value, f"{path}{name}.")
        else:
            found[path + name] = value
    return found


def test_every_setting_is_described() -> None:
    entries = dict(_ENTRY.findall(PAGE))
    assert set(entries) == set(settings_below(Settings()))
    for name, text in entries.items():
        lines = text.splitlines()
        assert lines[0] and not lines[0].startswith("- "), f"{name} has no docstring"
        assert [line.split(":")[0] for line in lines if line.startswith("- ")] == [
            "- Type",
            "- Default",
            "- Environment",
        ]


def test_the_variables_of_the_page_are_read() -> None:
    names = re.findall(r"Environment: `(\w+)`", PAGE)
    assert "TUNEFARM_SEARCH__COST_MODEL__ROUNDS" in names
    defaults = settings_below(Settings())
    for variable, (name, value) in zip(names, defaults.items(), strict=True):
        if isinstance(value, int) and not isinstance(value, bool):
            other = value - 1 if value > 4 else value + 1
            read = load_settings(environment={variable: str(other)})
            assert settings_below(read)[name] == other


def test_types_and_defaults_are_shown() -> None:
    entries = dict(_ENTRY.findall(PAGE))
    assert "- Type: integer from 1 to 4,096\n" in entries["compile.threads"]
    assert '- Type: `"flush"` or `"keep"`\n- Default: `"flush"`' in entries["compile.denormals"]
    assert "; optional\n- Default: not set" in entries["search.minutes"]
    assert "array of strings" in entries["compile.targets"]


def test_docstrings_of_fields_are_found() -> None:
    source = 'class A:\n    """Of A."""\n    x: int = 1\n    """The\n    x."""\n    y: int = 2\n'
    assert field_documentation(source) == {("A", "x"): "The\nx."}
