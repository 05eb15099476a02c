"""A job needs nothing of the lab: what runs a job and looks after it works where the lab cannot be imported.

Other commands exist to show and to measure, or start services for development; they are the lab's own.
"""

import ast
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import lockgate
from support.process import LOCKGATE, run

PACKAGE = Path(lockgate.__file__).parent
OF_THE_LAB = {
    *(
        "bench",
        "compare",
        "comparedjob",
        "demo",
        "examples",
        "proofrun",
        "prove",
        "provenjob",
        "simulate",
        "simulatejobs",
    ),
    "services",  # up, down, status; jars and doctor prepare a machine, and include what `up` needs
}
"""The files of cli/ that may import the lab."""

TEST_TOOLS = "lockgate.testing"
NO_LAB = """
    import os, sys

    class NoLab:
        def find_spec(self, name, path=None, target=None):
            if name == "lockgate.lab":
                with open(os.environ["LAB_IMPORTS"], "a") as file:
                    print(name, *sys.argv, file=file)
                raise ImportError("the lab is not here")

    sys.meta_path.insert(0, NoLab())
"""
JOB = """
    from lockgate import FileSource, Guarantee, Job, SqliteSink, StatefulFunction, stream, value

    class Totals(StatefulFunction):
        schema = "k STRING, total BIGINT"
        total = value("BIGINT")

        def process(self, row, context):
            self.total.set((self.total.get() or 0) + row.v)
            yield {"k": row.k, "total": self.total.get()}

    def job(path: str = "in") -> Job:
        read = stream("events", FileSource(path=path, value="k STRING, v INT"))
        totals = read.key_by("k").process(Totals(), name="totals")
        out, letters = (SqliteSink(path="results.db", table=table) for table in ("totals", "letters"))
        exact = Guarantee.END_TO_END_EXACTLY_ONCE
        return Job("without-lab", totals.to("out", out), guarantee=exact, dead_letters=letters)
"""
Called = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path) -> Called:
    """Runs a command in a directory with the job `job.py`, as if there were no lab; also in the processes it starts."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(textwrap.dedent(NO_LAB))
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    imports = tmp_path / "imports"
    environ: Mapping[str, str] = {"PYTHONPATH": str(tmp_path / "without"), "LAB_IMPORTS": str(imports)}

    def call(*command: str | Path, status: int = 0) -> str:
        done = run(*command, cwd=tmp_path, environ=environ)
        assert not imports.exists(), imports.read_text()
        assert done.returncode == status, done.stderr
        return done.stdout

    return call


def imported_by(file: Path) -> set[str]:
    """The modules of ours that a file imports, also from inside of a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return {name for name in found if name.startswith("lockgate.")}


def is_lab(module: str) -> bool:
    """Is this a module of the lab, or a command of the lab?"""
    return module.startswith("lockgate.lab") or module in {f"lockgate.cli.{name}" for name in OF_THE_LAB}


def test_the_files_of_other_commands_import_nothing_of_the_lab() -> None:
    files = {file.stem: file for file in (PACKAGE / "cli").glob("*.py")}
    assert files.keys() > OF_THE_LAB
    for name, file in files.items():
        # main.py registers all commands, and each imports what it needs when it is called.
        if name not in {*OF_THE_LAB, "main"}:
            assert [one for one in imported_by(file) if is_lab(one)] == [], file


@pytest.mark.process
def test_all_modules_but_those_of_the_lab_load_without_it(call: Called) -> None:
    names = [one.name for one in pkgutil.walk_packages([str(PACKAGE)], "lockgate.")]
    ours = [name for name in names if not is_lab(name) and not name.startswith(TEST_TOOLS)]
    assert len(ours) > 200
    call(sys.executable, "-c", f"import importlib\nfor name in {ours!r}: importlib.import_module(name)")


@pytest.mark.process
def test_a_process_without_the_lab_notices_an_import_of_it(call: Called) -> None:
    with pytest.raises(AssertionError, match=r"lockgate\.lab"):
        call(*LOCKGATE, "examples", "list", status=1)


@pytest.mark.process
def test_a_job_is_planned_and_packaged_without_the_lab(call: Called, tmp_path: Path) -> None:
    assert "Guarantee reached:  end-to-end exactly-once" in call(*LOCKGATE, "plan", "job.py")
    package = ["package", "job.py", "--out", "package", "--checkpoint", "hdfs://host/checkpoints"]
    call(*LOCKGATE, *package, "-p", "path=hdfs://host/in")
    assert (tmp_path / "package" / "main.py").is_file()


@pytest.mark.system
@pytest.mark.process
def test_a_job_runs_and_is_looked_after_without_the_lab(call: Called, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "events.json").write_text('{"k": "a", "v": 1}\nno JSON\n{"k": "a", "v": 2}\n')
    call(*LOCKGATE, "run", "job.py", "--until-caught-up", "--metrics", "0")
    assert "no JSON" in call(*LOCKGATE, "dead-letters", "list", "job.py", "--json")
    assert '"total": 3' in call(*LOCKGATE, "state", "job.py", "totals", "--key", "a")
    assert call(*LOCKGATE, "ledger", "show", "job.py")
    for words in (["list"], ["show"], ["verify"], ["clean", "--keep", "1"], ["savepoint", "--to", "saved"]):
        assert "without-lab" in call(*LOCKGATE, "checkpoints", words[0], "job.py", *words[1:]), words
    call(*LOCKGATE, "checkpoints", "diff", "job.py", ".lockgate/checkpoints/without-lab")
    call(*LOCKGATE, "checkpoints", "rollback", "job.py", "--uncommitted", status=2)
    call(*LOCKGATE, "checkpoints", "rescale", "job.py", "--partitions", "99")
    call(*LOCKGATE, "checkpoints", "restore", "saved", "job.py", "--put-aside", "--outputs", "again")
