"""A package holds all that a cluster needs, and nothing is packed that could not work there."""

import json
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

from lockgate.cli.main import main
from lockgate.deploy.environment import pack_environment
from lockgate.deploy.requirements import Requirement, pin
from lockgate.errors import BadMachine
from lockgate.spark.authentication import AUTHENTICATION
from lockgate.spark.shipping import (
    ENVIRONMENT,
    find_modules,
    is_archive,
    is_job_archive,
    pack_modules,
    pack_package,
)

JOB = """
    from lockgate import FileSink, FileSource, Guarantee, Job, stream
    import prices

    def job(path: str = "hdfs://host/in", declared: Guarantee = Guarantee.END_TO_END_EXACTLY_ONCE) -> Job:
        orders = stream("orders", FileSource(path=path, value="id INT, cents INT", format="json"))
        taxed = orders.map(lambda row: {"id": row.id, "cents": prices.taxed(row.cents)}, "id INT, cents INT")
        return Job("orders", taxed.to("out", FileSink(path="hdfs://host/out")), guarantee=declared)
"""
CHECKPOINT = "hdfs://host/checkpoints/orders"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    home = tmp_path / "jobs"
    (home / "rates" / "deep").mkdir(parents=True)
    (home / "rates" / "__init__.py").write_text("from rates.deep import tax\n")
    (home / "rates" / "deep" / "__init__.py").write_text("tax = 19\n")
    (home / "rates" / "table.csv").write_text("a,b\n")
    (home / "rates" / ".env").write_text("PASSWORD=secret\n")
    (home / "prices.py").write_text("def taxed(cents):\n    import rates\n    return cents + rates.tax\n")
    (home / "kafka.py").write_text("raise RuntimeError('nobody means me')\n")
    (home / "unused.py").write_text("")
    file = home / "orders.py"
    file.write_text(textwrap.dedent(JOB))
    return file


# -- what travels ------------------------------------------------------------------------------------------------------


def test_modules_beside_the_job_travel_where_it_imports_them_also_from_inside_a_function(job_file: Path) -> None:
    assert [place.name for place in find_modules(job_file)] == ["prices.py", "rates"]


def test_a_module_that_python_does_not_mean_stays(job_file: Path) -> None:
    job_file.write_text("import kafka, json, lockgate, unused\n")
    assert [place.name for place in find_modules(job_file)] == ["unused.py"]


def test_a_job_without_modules_of_its_own_has_no_archive_of_them(job_file: Path, tmp_path: Path) -> None:
    job_file.write_text("import json\n")
    assert pack_modules(job_file, tmp_path) is None


def test_the_same_files_make_the_same_archive(job_file: Path, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        packed = pack_modules(job_file, tmp_path / name, with_job=True)
        assert packed is not None
        made.append(packed)
    assert made[0].read_bytes() == made[1].read_bytes()
    assert made[0].name != made[1].name, "a process without the secret must not guess it"
    with zipfile.ZipFile(made[0]) as found:
        assert found.namelist() == [
            "orders.py",
            "prices.py",
            "rates/__init__.py",
            "rates/deep/__init__.py",
            "rates/table.csv",
        ]


@pytest.mark.process
def test_a_python_that_knows_nothing_of_us_imports_us_from_the_archive(tmp_path: Path) -> None:
    archive = pack_package(tmp_path)
    look = (
        "import sys, importlib.metadata; sys.path.insert(0, sys.argv[1]); import lockgate.errors;"
        "print(lockgate.errors.__file__, importlib.metadata.version('lockgate'))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look, str(archive)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [f"{archive}/lockgate/errors.py", "0.1.0"]
    with zipfile.ZipFile(archive) as found:
        assert "lockgate/provision/jars.sha256" in found.namelist()
        assert not [name for name in found.namelist() if "__pycache__" in name]


# -- the libraries -----------------------------------------------------------------------------------------------------


def test_a_requirement_is_read_with_its_extras_and_its_condition() -> None:
    assert Requirement.read("psycopg[binary, pool]>=3 ; extra == 'postgres'") == Requirement(
        "psycopg", frozenset({"binary", "pool"}), "postgres"
    )
    assert Requirement.read('Typing_Extensions>=4; python_version < "3.13"').only_with is None
    assert Requirement.read("Typing_Extensions>=4").name == "typing-extensions"


def test_what_is_installed_is_pinned_with_all_that_it_needs_but_for_spark_and_us(job_file: Path) -> None:
    import pandas

    pinned = pin(job_file, ("kafka", "postgres"))
    assert pinned["pandas"] == pandas.__version__
    assert {"pyarrow", "numpy", "kafka-python", "crc32c", "psycopg", "psycopg-binary"} <= pinned.keys()
    assert not {"pyspark", "py4j", "lockgate", "pytest", "mypy"} & pinned.keys()
    assert "kafka-python" not in pin(job_file, ())


def test_a_library_that_only_a_module_beside_the_job_imports_is_pinned(job_file: Path) -> None:
    assert "hypothesis" not in pin(job_file, ())
    (job_file.parent / "rates" / "deep" / "__init__.py").write_text("import hypothesis\ntax = 1\n")
    assert "hypothesis" in pin(job_file, ())


@pytest.mark.process
def test_an_environment_is_what_is_installed_here_and_works_from_a_directory(tmp_path: Path) -> None:
    archive = pack_environment(["sqlglot"], tmp_path / "environment.tar.gz")
    with tarfile.open(archive) as packed:
        # Debian 12's Python 3.11.2 does not know the argument `filter`, and Python 3.12 warns when there is none.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(tmp_path / "there")
    assert not (tmp_path / "there" / "bin").exists()
    look = "import sys; sys.path.insert(0, sys.argv[1]); import sqlglot; print(sqlglot.__file__)"
    command = [sys.executable, "-I", "-S", "-c", look, str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(tmp_path / "there"))


def test_a_library_that_is_only_a_link_to_its_sources_is_not_sent_as_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "ours-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (facts / "RECORD").write_text("__editable__.ours-1.0.pth,,\n")
    (facts / "direct_url.json").write_text('{"url": "file:///src/ours", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadMachine, match="ours is a link to its sources here"):
        pack_environment(["ours"], tmp_path / "environment.tar.gz")


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_package_has_a_command_for_each_kind_of_cluster(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "package"
    words = ["package", str(job_file), "--out", str(out), "--checkpoint", CHECKPOINT, "-p", "path=hdfs://host/it's"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["job"] == "orders"
    assert told["checkpoint"] == CHECKPOINT
    assert told["warnings"] == []
    requirements = (out / "requirements.txt").read_text()
    assert requirements.count("==") <= requirements.count("--hash=sha256:")
    assert {"main.py", "requirements.txt"} <= {*told["files"]}
    archives = sorted(filter(is_archive, told["files"]), key=is_job_archive)
    assert [is_job_archive(name) for name in archives] == [False, True]
    assert f"pandas=={told['requirements']['pandas']}" in (out / "requirements.txt").read_text()
    assert "sys.exit(main('orders.py', ['-p', \"path=hdfs://host/it's\", '--checkpoint', " in (
        (out / "main.py").read_text()
    )
    compile((out / "main.py").read_text(), "main.py", "exec")
    for command in told["commands"]:
        subprocess.run(["sh", "-n", command], check=True)
        text = Path(command).read_text()
        assert f"--py-files {','.join(archives)}" in text
        assert "--jars" not in text  # no topic, no connector
        assert ENVIRONMENT not in text
    assert "--deploy-mode cluster" in (out / "submit-yarn.sh").read_text()
    assert main(words) == 0, "an earlier package is replaced"
    (out / "notes.txt").write_text("mine")
    assert main(words) == 2
    assert "also contains notes.txt, which would be lost" in capsys.readouterr().err
    assert (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("kind", ["standalone", "kubernetes"])
def test_a_command_asks_for_what_only_the_place_knows(kind: str, job_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    assert main(["package", str(job_file), "--out", str(out), "--checkpoint", CHECKPOINT]) == 0
    environ = {"PATH": "/usr/bin:/bin", "SPARK_SUBMIT": "true"}
    done = subprocess.run([out / f"submit-{kind}.sh"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "name the cluster: MASTER=" in done.stderr


def test_the_arguments_of_a_command_go_to_the_job_and_options_go_to_spark(job_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    assert main(["package", str(job_file), "--out", str(out), "--checkpoint", CHECKPOINT]) == 0
    environ = {"PATH": "/usr/bin:/bin", "SPARK_SUBMIT": "echo", "SPARK_OPTIONS": "--executor-memory 2g"}
    command = [out / "submit-yarn.sh", "-p", "path=a b"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("--executor-memory 2g main.py -p path=a b")


def test_clusters_that_make_a_secret_are_asked_for_one_and_a_job_can_insist(job_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "package"
    words = ["package", str(job_file), "--out", str(out), "--checkpoint", CHECKPOINT]
    assert main(words) == 0
    asking = [f"--conf {name}={value}" for name, value in AUTHENTICATION.items()]
    for kind, wanted in (("yarn", asking), ("kubernetes", asking), ("standalone", [])):
        text = (out / f"submit-{kind}.sh").read_text()
        assert [one for one in asking if one in text] == wanted, kind
        assert "authenticate.secret" not in text, "a command line is for everybody to read"
    assert "--secure" not in (out / "main.py").read_text()
    assert main([*words, "--secure"]) == 0
    assert "'--secure'" in (out / "main.py").read_text()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "no checkpoint is named"),
        (["--checkpoint", "/var/checkpoints"], "a different directory on each machine"),
        (["--checkpoint", CHECKPOINT, "-p", "declared=AT_MOST_ONCE"], "keeps no checkpoint"),
        (["--checkpoint", CHECKPOINT, "-p", "nobody=1"], "no parameter 'nobody'"),
    ],
)
def test_what_would_not_work_on_a_cluster_is_refused_and_nothing_is_made(
    more: list[str], told: str, job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "package"
    assert main(["package", str(job_file), "--out", str(out), *more]) == 2
    assert told in capsys.readouterr().err
    assert [place.name for place in tmp_path.iterdir()] == ["jobs"]


def test_a_job_that_claims_too_much_is_refused(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = job_file.read_text().replace('FileSink(path="hdfs://host/out")', "ConsoleSink()")
    job_file.write_text(text.replace("import FileSink", "import ConsoleSink"))
    assert main(["package", str(job_file), "--out", str(tmp_path / "package"), "--checkpoint", CHECKPOINT]) == 2
    assert "declares end-to-end exactly-once but reaches" in capsys.readouterr().err


def test_a_strangers_directory_is_not_replaced(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["package", str(job_file), "--checkpoint", CHECKPOINT, "--out", str(job_file.parent)]
    assert main(words) == 2
    assert "not a package that could be replaced" in capsys.readouterr().err
    assert job_file.is_file()


def test_places_of_one_machine_are_warned_of(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    words = ["package", str(job_file), "--out", str(tmp_path / "package"), "--checkpoint", "file:///mnt/orders"]
    assert main([*words, "-p", f"path={tmp_path / 'in'}"]) == 0
    told = capsys.readouterr().err
    assert "warning: file:///mnt/orders must be the same mounted directory on every machine" in told
    assert f"warning: FileSource 'orders': {tmp_path / 'in'} is a different directory on each machine" in told


def test_a_password_is_not_packed(job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["package", str(job_file), "--checkpoint", CHECKPOINT, "--out", str(tmp_path / "out")]
    assert main([*words, "-p", "path=hdfs://ada:w0nder@host/in"]) == 2
    told = capsys.readouterr().err
    assert "'path' contains a password" in told
    assert "env:NAME" in told
    assert "w0nder" not in told
    assert not (tmp_path / "out").exists()
