from pathlib import Path

import pytest

from lockgate.errors import BadMachine
from lockgate.provision.java import Java, find_java


def put_java(place: Path, says: str) -> Path:
    place.mkdir(parents=True)
    java = place / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_wins_over_the_path_as_it_does_in_spark(tmp_path: Path) -> None:
    chosen = put_java(tmp_path / "home" / "bin", 'openjdk version "21.0.1"')
    put_java(tmp_path / "path", 'openjdk version "17.0.15"')
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environ) == Java(path=chosen, version=21)


def test_the_path_is_used_without_java_home_and_other_chatter_is_ignored(tmp_path: Path) -> None:
    chosen = put_java(tmp_path / "path", 'Picked up JAVA_TOOL_OPTIONS: -Da=b\nopenjdk version "17" 2021-09-14')
    assert find_java({"PATH": str(tmp_path / "path")}) == Java(path=chosen, version=17)


@pytest.mark.parametrize(("says", "version"), [('java version "1.8.0_392"', 8), ('openjdk version "16.0.2"', 16)])
def test_an_old_java_is_refused(tmp_path: Path, says: str, version: int) -> None:
    put_java(tmp_path / "path", says)
    with pytest.raises(BadMachine, match=f"this is Java {version}"):
        find_java({"PATH": str(tmp_path / "path")})


def test_a_java_home_without_java_is_refused_even_if_the_path_has_one(tmp_path: Path) -> None:
    put_java(tmp_path / "path", 'openjdk version "17.0.15"')
    with pytest.raises(BadMachine, match="JAVA_HOME holds none"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "path")})


def test_a_launcher_that_only_complains_is_refused(tmp_path: Path) -> None:
    put_java(tmp_path / "path", "Unable to locate a Java Runtime.")
    with pytest.raises(BadMachine, match="does not say its version: Unable to locate"):
        find_java({"PATH": str(tmp_path / "path")})
