"""Where notes go for users without a home, or with one that cannot be written."""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tunefarm.configs.errors import SettingsError
from tunefarm.configs.settings import state_folder
from tunefarm.configs.temporary_folders import temporary_root


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, as it is for everybody; no folder for notes is named."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return folder


def none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(user: int) -> object:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", homeless)


def a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.touch()


def below_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.touch()
    monkeypatch.setenv("HOME", str(home / "me"))


def relative(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "home")


def a_file_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home))


@pytest.mark.parametrize("case", [none, a_file, below_a_file, relative, a_file_named])
def test_without_a_home_notes_go_to_a_private_folder_for_temporary_files(
    case: Callable[[Path, pytest.MonkeyPatch], None],
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    case(tmp_path / "home", monkeypatch)
    folder = state_folder()
    assert folder == temporary / f"tunefarm-{os.geteuid()}" / "state"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert state_folder() == folder  # the command that ends what another one has started finds it


def test_a_home_that_cannot_be_written_or_looked_at_is_passed_over(
    unwritable_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    folder = Path(f"/tmp/tunefarm-{os.geteuid()}/state")
    for home in (unwritable_folder, unwritable_folder / "me", "/proc/1/root"):
        monkeypatch.setenv("HOME", str(home))
        assert state_folder() == folder
    for made in (folder, folder.parent):
        with suppress(OSError):  # this user's own notes may be there
            made.rmdir()


def test_a_home_is_used_whether_its_folders_are_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "new"))
    assert state_folder() == tmp_path / "new" / ".local" / "state" / "tunefarm"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which counts as not set
    assert state_folder() == tmp_path / "new" / ".local" / "state" / "tunefarm"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    assert state_folder() == tmp_path / "states" / "tunefarm"


def test_notes_that_others_could_change_are_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "relative")
    folder = temporary / f"tunefarm-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SettingsError, match="others may write to") as caught:
        state_folder()
    assert "XDG_STATE_HOME names a folder" in str(caught.value)


def test_a_folder_for_sockets_has_a_short_path_or_there_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert temporary_root(None, 20) == str(deep)
    assert temporary_root(40, 20) in ("/tmp", "/dev/shm")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OSError, match="name a folder with a short path in TMPDIR") as caught:
        temporary_root(40, 20)
    assert caught.value.errno == errno.ENAMETOOLONG and caught.value.filename == str(deep)
