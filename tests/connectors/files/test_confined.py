"""Names that others have chosen lead nowhere outside: not by their text, and not through links."""

from pathlib import Path

import pytest

from lockgate.checkpoints.tree import LocalTree
from lockgate.connectors.files.confined import LeadsOutside, find_link, move_below, remove_below
from lockgate.connectors.files.filesystem import LocalSystem

HOSTILE = (
    "../victim",
    "/etc/hostname",
    "a/../../victim",
    "a//b",
    "./a",
    "a/.",
    "..",
    ".",
    "",
    "a\0b",
    "a\ud800b",
    "link/victim",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a link that leads to its neighbour, in which a victim lies."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim").write_text("precious")
    (tmp_path / "victim").write_text("precious")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "outside")
    return root


def require_victims(root: Path) -> None:
    assert (root.parent / "victim").read_text() == "precious"
    assert (root.parent / "outside" / "victim").read_text() == "precious"
    assert Path("/etc/hostname").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_outside_is_removed(root: Path, name: str) -> None:
    for remove in (LocalSystem(root).delete, LocalTree(root).remove):
        with pytest.raises(LeadsOutside):
            remove(name)
    require_victims(root)
    assert root.exists()


def test_a_link_is_removed_and_what_it_leads_to_stays(root: Path) -> None:
    (root / "a" / "link").symlink_to(root.parent / "outside")
    LocalTree(root).remove("link")
    LocalSystem(root).delete("a")
    assert list(root.iterdir()) == []
    require_victims(root)


def test_a_folder_that_became_a_link_after_it_was_listed_is_not_followed(root: Path) -> None:
    (root / "state" / "0").mkdir(parents=True)
    (root / "state" / "0" / "victim").write_text("old")
    tree = LocalTree(root)
    (name,) = (entry.name for entry in tree.entries())
    (root / "state" / "0").rename(root / "away")
    (root / "state" / "0").symlink_to(root.parent / "outside")
    with pytest.raises(LeadsOutside, match="link"):
        tree.remove(name)
    require_victims(root)


def test_links_are_neither_files_nor_folders_of_a_tree(root: Path) -> None:
    (root / "a" / "hosts").symlink_to("/etc/hostname")
    assert LocalTree(root).entries() == []
    assert LocalTree(root).folders() == ["a"]
    (root / "a" / "part-0").symlink_to("/etc/hostname")
    assert LocalSystem(root).files("a") == {}


def test_the_root_itself_may_be_reached_through_a_link(root: Path) -> None:
    (root.parent / "other").symlink_to(root)
    (root / "a" / "b").write_text("")
    remove_below(root.parent / "other", "a/b")
    assert list((root / "a").iterdir()) == []


def test_what_is_gone_is_fine_and_a_folder_is_no_file(root: Path) -> None:
    for name in ("gone", "gone/too", "a/gone"):
        remove_below(root, name)
    with pytest.raises(IsADirectoryError):
        remove_below(root, "a", is_file=True)
    assert (root / "a").is_dir()


def test_the_first_link_on_the_way_is_found(root: Path) -> None:
    assert find_link(root, ["a/b", "gone/b"]) is None
    assert find_link(root, ["a/b", "link/c/victim"]) == "link"


@pytest.mark.parametrize(("name", "to"), [("link/victim", "x"), ("../victim", "x"), ("f", "../x"), ("f", "link/x")])
def test_nothing_is_moved_from_outside_or_to_it(root: Path, name: str, to: str) -> None:
    (root / "f").write_text("")
    archive = root.parent / "archive"
    archive.mkdir()
    (archive / "link").symlink_to(root.parent / "outside")
    with pytest.raises(LeadsOutside):
        move_below(root, name, archive, to)
    assert (root / "f").exists()
    assert [one.name for one in (root.parent / "outside").iterdir()] == ["victim"]
    require_victims(root)


def test_a_file_is_moved_with_its_folders_and_never_over_another(root: Path) -> None:
    (root / "a" / "f").write_text("1")
    (root / "g").write_text("2")
    archive = root.parent / "not" / "there"
    assert move_below(root, "a/f", archive, "a/f")
    assert not move_below(root, "g", archive, "a/f")
    assert (archive / "a" / "f").read_text() == "1"
    assert (root / "g").read_text() == "2"
    assert not (root / "a" / "f").exists()


def test_a_link_is_not_archived(root: Path) -> None:
    with pytest.raises(LeadsOutside, match="is a link"):
        move_below(root, "link", root.parent / "archive", "link")
    require_victims(root)
