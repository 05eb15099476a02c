"""The examples are found where they are: in a checkout, and in a package that is installed."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from lockgate.errors import BadMachine, Refused
from lockgate.lab.demo.catalog import find_example, find_examples
from support.process import LOCKGATE, run

ROOT = Path(__file__).parents[3]


def test_every_example_of_the_checkout_is_found_and_asks_something() -> None:
    found = find_examples()
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert [one.name for one in found] == sorted(files | {"fraud_detection"})
    assert all("? " in one.line and len(one.line) < 120 for one in found)
    assert find_example("fraud_detection").path == ROOT / "examples" / "fraud_detection" / "job.py"
    assert {one.path.parent for one in found if one.name != "fraud_detection"} == {ROOT / "examples"}


@pytest.mark.parametrize("name", ["requests_per_ip", "requests-per-ip", "requests_per_ip.py"])
def test_an_example_is_found_by_its_name(name: str) -> None:
    assert find_example(name).source == (ROOT / "examples" / "requests_per_ip.py").read_text()


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(Refused, match="no example 'paymnets'") as refused:
        find_example("paymnets")
    assert refused.value.fix == "did you mean payments?"
    with pytest.raises(Refused) as refused:
        find_example("xyzzy")
    assert "smoke_alarm" in refused.value.fix


def test_a_machine_without_the_examples_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadMachine, match="not on this machine"):
        find_examples((tmp_path,))


@pytest.mark.process
def test_a_wheel_holds_the_examples_the_templates_and_the_page_of_the_figure(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("lockgate", "examples"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, tree)
    # Built as pip builds it, by the tools that are here.
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = run(sys.executable, "-c", build, tmp_path, cwd=tree)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    assert (site / "lockgate" / "dashboard" / "figure.html").is_file()
    assert (site / "lockgate" / "deploy" / "requirements.lock").is_file()
    assert (site / "lockgate" / "cli" / "templates" / "windows.py.txt").is_file()

    environ = {"PYTHONPATH": str(site)}
    listed = run(*LOCKGATE, "examples", "list", cwd=tmp_path, environ=environ)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [one.name for one in find_examples()]
    shown = run(*LOCKGATE, "examples", "show", "payments", cwd=tmp_path, environ=environ)
    assert shown.stdout == find_example("payments").source
    # What is beside the job of the folder is there too: it parses its command line, and imports the whole show.
    told = run(*LOCKGATE, "examples", "run", "fraud_detection", "--help", cwd=tmp_path, environ=environ)
    assert "--json" in told.stdout, told.stderr
    for path in (ROOT / "examples" / "fraud_detection").rglob("*.py"):
        assert (site / "lockgate" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
