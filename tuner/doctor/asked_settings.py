"""The settings that a question is about; the defaults where those cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunefarm.tuner.doctor.findings import Question

if TYPE_CHECKING:
    from tunefarm.configs.settings import Settings


def settings_of(question: Question) -> Settings:
    """The settings that a command with these options has. The check of the settings says what is
    wrong with them; the others look at the defaults then."""
    from tunefarm.configs.errors import SettingsError
    from tunefarm.configs.settings import Settings, load_settings

    try:
        return load_settings(question.config, {"database.url": question.db})
    except SettingsError:
        return Settings()
