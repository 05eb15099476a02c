"""What the tests of commands about a ledger share."""

from pathlib import Path
from uuid import uuid4

import pytest

from support.ledgers import Place, in_files, in_postgres, in_sqlite


@pytest.fixture(params=["sqlite", "files", pytest.param("postgres", marks=pytest.mark.system)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A system in which a job could have a ledger, and has none yet."""
    job = f"ledger-{uuid4().hex[:8]}"
    if request.param == "postgres":
        return in_postgres(job, request.getfixturevalue("dsn"))
    return (in_sqlite if request.param == "sqlite" else in_files)(job, tmp_path)
