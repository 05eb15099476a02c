"""What the tests of exactly-once files share; most of them need no Spark."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from file_desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty directory for a job's files."""
    return Desk(tmp_path / "out")
