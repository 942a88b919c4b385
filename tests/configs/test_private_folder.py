"""Folders that others may write to are told from those that they may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tunefarm.configs import private_folder
from tunefarm.configs.private_folder import is_own, make_private, writable_by_others
from tunefarm.configs.settings import cache_folder, cache_problem, load_settings

_NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder within another one."""
    path = tmp_path / "outer" / "inner"
    make_private(path)
    return path


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make another user the owner of a file; who may not is another user from now on."""
    if os.geteuid() == 0:
        os.chown(path, _NOBODY, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: _NOBODY)


def test_folder_that_was_made_private_is(folder: Path) -> None:
    assert writable_by_others(folder) == ""
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def test_folder_that_is_not_there_yet_is_judged_by_those_above(folder: Path) -> None:
    missing = folder / "not" / "there"
    assert writable_by_others(missing) == ""
    folder.chmod(0o777)
    assert f"others may write to {folder} (chmod go-w {folder})" in writable_by_others(missing)
    assert not missing.exists()


@pytest.mark.parametrize("mode", [0o777, 0o707, 0o702])
def test_folder_that_all_may_write_to_is_not_private(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert "others may write to" in writable_by_others(folder)
    assert "others may write to" in writable_by_others(folder / "below")


def test_parent_in_which_the_folder_could_be_replaced_is_found(folder: Path) -> None:
    folder.parent.chmod(0o777)
    assert f"others may write to {folder.parent} " in writable_by_others(folder)


def test_folder_of_ones_own_in_a_sticky_one_is_private(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert writable_by_others(folder) == ""
    assert "others may write to" in writable_by_others(folder.parent)


def test_group_of_its_own_is_the_user_and_another_group_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o770)
    monkeypatch.setattr(private_folder, "_is_own_group", lambda number: True)
    assert writable_by_others(folder) == ""
    monkeypatch.setattr(private_folder, "_is_own_group", lambda number: False)
    assert "others may write to" in writable_by_others(folder)


def test_folder_of_another_user_is_not_private(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(folder, monkeypatch)
    assert "belongs to another user" in writable_by_others(folder)
    assert not is_own(folder.stat())


def test_link_is_followed_to_the_folder_that_is_meant(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("outer/../outer/inner")
    assert writable_by_others(link) == ""
    folder.chmod(0o777)
    assert f"others may write to {folder} " in writable_by_others(link)


def test_link_that_could_be_replaced_is_found(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(folder)
    (tmp_path / "first").symlink_to(shared / "link")
    assert writable_by_others(tmp_path / "first") == ""
    shared.chmod(0o777)
    assert f"others may write to {shared} " in writable_by_others(tmp_path / "first")


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert writable_by_others(tmp_path / "a" / "below") == ""


def test_cache_that_others_may_write_to_is_none_and_says_why(folder: Path) -> None:
    settings = load_settings(None, {"cache.folder": str(folder)}, environment={})
    assert (cache_folder(settings), cache_problem(settings)) == (folder, "")
    folder.chmod(0o777)
    assert cache_folder(settings) is None
    assert cache_problem(settings) == (
        f"nothing is taken from or kept in the cache {folder}: "
        f"others may write to {folder} (chmod go-w {folder}), or set cache.folder"
    )
    off = load_settings(None, {"cache.enabled": False}, environment={})
    assert cache_problem(off) == ""
