"""Prove a job in your own tests: processes, brokers and disks die, and the proof compares what readers saw with the
promise.

    from lockgate.testing import prove

    def test_payments_keep_their_promise(tmp_path):
        prove("jobs/payments.py", kills=12, root=tmp_path)

With pytest the fixture `lockgate_prove` does the same in one line, in a directory of its own:

    def test_payments_keep_their_promise(lockgate_prove):
        lockgate_prove("jobs/payments.py", kills=12)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockgate.cli.proofrequest import ProofRequest
from lockgate.cli.proofrun import prove_file
from lockgate.escaping import tell
from lockgate.lab.prove.page import write_page
from lockgate.lab.prove.verdict import Verdict


class NotProven(AssertionError):
    """The promise is broken, or it is unknown; the text says what was found, and how to replay it."""


def prove(
    file: str | Path,
    *,
    root: Path,
    kills: int = ProofRequest.kills,
    parameters: Mapping[str, str] | None = None,
    faults: Sequence[str] | None = None,
    points: Sequence[str] | None = None,
    events: int = ProofRequest.events,
    rows_per_epoch: int = ProofRequest.rows_per_epoch,
    seed: int = ProofRequest.seed,
    given: Mapping[str, Path] | None = None,
    brokers: int | None = None,
    cluster: bool = False,
) -> Verdict:
    """Prove the job of a file, as `lockgate prove` does; returns the verdict if the promise holds.

    Args:
        root: a directory for services, trials and the page; trials of an earlier proof there count too.
        parameters: of the job file.
        faults, points: only these; None: all that fit the job.
        given: files of events by the names of streams, one JSON per line; other streams get generated events.

    Raises:
        NotProven: it does not hold.
        Refused: the job cannot be proven; the error says why.
    """
    request = ProofRequest(
        file=str(file),
        parameters=tuple(f"{name}={value}" for name, value in (parameters or {}).items()),
        kills=kills,
        faults=faults,
        points=points,
        events=events,
        rows_per_epoch=rows_per_epoch,
        seed=seed,
        given=dict(given or {}),
        brokers=brokers,
        is_cluster=cluster,
    )
    proven = prove_file(request, tell=tell, root=root / "services")
    page = proven.home / "proof.html"
    page.write_text(write_page(proven.report), encoding="utf-8")
    if not proven.verdict.holds:
        raise NotProven(f"{proven.report.as_text(100)}\n\nthe page: {page}")
    return proven.verdict


Prove = Callable[..., Verdict]
"""The type of the fixture: `prove` with its `root`."""
