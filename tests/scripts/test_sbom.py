"""The bill of materials and the audit: all that is locked is in both, and an audit that did not happen is no pass."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lockgate.deploy.locked import read_lock
from lockgate.lab.services import ports

ROOT = Path(__file__).parents[2]
PACKAGES = {(one.name, one.version) for one in read_lock((ROOT / "requirements.lock").read_text())}
JARS = {line.split("  ")[0] for line in (ROOT / "lockgate/provision/jars.sha256").read_text().splitlines()}

pytestmark = pytest.mark.process


def run(script: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / script)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environ}
    )


@contextmanager
def database(known: dict[str, list[str]], *, per_page: int = 10, silent_after: int | None = None) -> Iterator[str]:
    """A server with the interface of OSV, which knows these advisories by purl."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            results: list[dict[str, Any]] = []
            for one in asked:
                start = int(one.get("page_token", 0))
                found = known.get(one["package"]["purl"], [])
                rest = {"next_page_token": str(start + per_page)} if len(found) > start + per_page else {}
                results.append({"vulns": [{"id": id} for id in found[start : start + per_page]], **rest})
            content = json.dumps({"results": results[:silent_after]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def test_the_bill_names_everything_with_its_licence_and_hashes() -> None:
    first, second = (run("sbom.py", SOURCE_DATE_EPOCH="1767225600") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    bill = json.loads(first.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "lockgate"
    packages = {(one["name"], one["version"]) for one in bill["components"] if one["purl"].startswith("pkg:pypi/")}
    assert packages == PACKAGES
    jars = [one for one in bill["components"] if one["purl"].startswith("pkg:maven/")]
    assert {hash["content"] for one in jars for hash in one["hashes"]} == JARS
    assert all(one["licenses"][0]["expression"] and one["hashes"] for one in bill["components"])


def test_an_audit_that_finds_nothing_has_asked_for_everything() -> None:
    with database({}) as server:
        done = run("audit.py", LOCKGATE_OSV=server)
    assert done.returncode == 0, done.stderr
    assert f"{len(PACKAGES) + len(JARS)} packages and jars were looked up" in done.stdout


def test_an_audit_names_what_is_vulnerable() -> None:
    (name, version), *_ = sorted(PACKAGES)
    known = {
        f"pkg:pypi/{name}@{version}": [f"PYSEC-{number}" for number in range(25)],
        "pkg:maven/org.yaml/snakeyaml@2.5": ["GHSA-x"],
    }
    with database(known) as server:
        done = run("audit.py", LOCKGATE_OSV=server)
    assert done.returncode == 1
    assert f"pkg:pypi/{name}@{version}  PYSEC-0, PYSEC-1, PYSEC-10" in done.stdout
    assert "PYSEC-24" in done.stdout
    assert "pkg:maven/org.yaml/snakeyaml@2.5  GHSA-x" in done.stdout
    assert "2 have advisories" in done.stdout


def test_an_audit_without_its_database_is_no_pass() -> None:
    done = run("audit.py", LOCKGATE_OSV=f"http://127.0.0.1:{ports.choose(1, random.Random())[0]}")
    assert done.returncode == 3
    assert done.stderr.startswith("Nothing was audited: ")
    assert "fix:" in done.stderr


def test_an_audit_with_answers_missing_is_no_pass() -> None:
    with database({}, silent_after=5) as server:
        done = run("audit.py", LOCKGATE_OSV=server)
    assert done.returncode == 3
    assert "it answered for 5 of 100" in done.stderr
