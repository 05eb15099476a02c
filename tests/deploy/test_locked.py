"""The libraries of a package have the hashes of their files, and pip takes no others."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lockgate.cli.main import main
from lockgate.deploy.locked import hashes_of, lock_file, read_lock
from lockgate.deploy.requirements import as_text

JOB = """
import tiny
from lockgate import FileSink, FileSource, Guarantee, Job, stream

def job() -> Job:
    orders = stream("orders", FileSource(path="hdfs://host/in", value="id INT", format="json"))
    sink = FileSink(path="hdfs://host/out")
    return Job("orders", orders.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
"""
CHECKPOINT = "hdfs://host/checkpoints/orders"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A wheel with one module, made by hand, in a folder of its own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    facts = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "x = 1\n",
        f"{facts}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{facts}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{facts}/RECORD"])
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return folder / "tiny-1.0-py3-none-any.whl"


def pip_install(requirements: Path, target: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "-r", str(requirements)]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=600, check=False)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_lock_file_of_this_checkout_is_read_whole() -> None:
    file = lock_file()
    assert file is not None
    text = file.read_text()
    found = read_lock(text)
    assert len(found) == sum(line[:1].isalnum() for line in text.splitlines())
    assert sum(len(one.sha256) for one in found) == text.count("--hash=sha256:")
    assert all(one.sha256 for one in found)
    with pytest.raises(ValueError, match="not a line of a lock file"):
        read_lock("six\n")


def test_a_list_has_a_hash_for_each_library_or_none() -> None:
    pinned = {"six": "1.17.0", "tiny": "1.0"}
    both = as_text(pinned, job="j", spark="4", hashes={"six": ("a", "b"), "tiny": ("c",)})
    assert "six==1.17.0 \\\n    --hash=sha256:a \\\n    --hash=sha256:b\ntiny==1.0 \\\n    --hash=sha256:c\n" in both
    one = as_text(pinned, job="j", spark="4", hashes={"six": ("a", "b")})
    assert one.endswith("six==1.17.0\ntiny==1.0\n")


@pytest.mark.process
def test_pip_takes_the_file_with_the_hash_and_no_other(tiny: Path, tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(as_text({"tiny": "1.0"}, job="j", spark="4", hashes={"tiny": (sha256(tiny),)}))
    here = ("--no-index", "--find-links", str(tiny.parent))
    done = pip_install(requirements, tmp_path / "first", *here)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first" / "tiny.py").is_file()
    with zipfile.ZipFile(tiny, "a") as wheel:
        wheel.writestr("more.py", "")
    refused = pip_install(requirements, tmp_path / "second", *here)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr


@pytest.mark.process
def test_a_library_that_is_not_locked_gets_the_hash_of_what_pip_finds(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.parent))
    file = lock_file()
    assert file is not None
    six = next(one for one in read_lock(file.read_text()) if one.name == "six")
    assert hashes_of({"tiny": "1.0", "six": six.version}) == {"tiny": (sha256(tiny),), "six": six.sha256}
    assert hashes_of({"tiny": "2.0", "six": six.version}) == {"six": six.sha256}


@pytest.mark.process
def test_a_package_without_hashes_says_so(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pip_install_tiny(tiny, tmp_path / "site").returncode == 0
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "orders.py").write_text(JOB)
    words = ["package", str(tmp_path / "jobs" / "orders.py"), "--checkpoint", CHECKPOINT]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    assert main([*words, "--out", str(tmp_path / "without")]) == 0
    assert "has no hashes, because pip finds no file of tiny in its index" in " ".join(capsys.readouterr().err.split())
    assert "--hash" not in (tmp_path / "without" / "requirements.txt").read_text()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.parent))
    assert main([*words, "--out", str(tmp_path / "with")]) == 0
    assert "has no hashes" not in capsys.readouterr().err
    assert f"tiny==1.0 \\\n    --hash=sha256:{sha256(tiny)}\n" in (tmp_path / "with" / "requirements.txt").read_text()


def pip_install_tiny(tiny: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", str(target), str(tiny)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.prove
@pytest.mark.process
def test_a_package_installs_with_its_hashes(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "orders.py").write_text(JOB.replace("import tiny\n", ""))
    out = tmp_path / "package"
    assert main(["package", str(tmp_path / "jobs" / "orders.py"), "--out", str(out), "--checkpoint", CHECKPOINT]) == 0
    done = pip_install(out / "requirements.txt", tmp_path / "target", "--require-hashes")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "target" / "pyarrow").is_dir()
