"""The build backend that pyproject.toml names; nothing that is installed imports it."""
