"""What the tests of exactly-once files share; most of them need no Spark."""

from pathlib import Path

import pytest

from support.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty directory for a job's files."""
    return Desk(tmp_path / "out")
