""".ci/run runs what the README tells people to run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def test_ci_runs_the_readmes_test_command(repository: Path) -> None:
    """The extraction of .ci/run, run by itself, gives the one command of the README's block."""
    script = (repository / ".ci" / "run").read_text()
    (extraction,) = re.findall(r"^test_command=\$\((.*)\)$", script, re.MULTILINE)
    found = subprocess.run(
        ["bash", "-c", extraction], cwd=repository, capture_output=True, text=True, check=True
    )
    readme = (repository / "README.md").read_text()
    assert found.stdout.count("\n") == 1
    assert f"```sh\n{found.stdout}```" in readme
    assert "pytest" in found.stdout


def test_ci_names_no_host(repository: Path) -> None:
    for name in (".ci/run", "pyproject.toml"):
        text = (repository / name).read_text()
        assert not re.search(r"https?://|index-url|\bpypi\b", text), name


def test_pages_name_no_registry(repository: Path) -> None:
    """Packages have names; where they are fetched from is the reader's matter."""
    pages = (repository / "tuner" / "docs" / "pages").glob("*.md")
    for path in (repository / "README.md", *pages):
        assert not re.search(r"pypi\.org|crates\.io|ghcr\.io|docker\.io", path.read_text()), path
