"""What the tests of exactly-once files share; most of them need no Spark."""

from pathlib import Path

import pytest

from support.filesjob import FilesJob


@pytest.fixture
def files_job(tmp_path: Path) -> FilesJob:
    """An empty directory for a job's files."""
    return FilesJob(tmp_path / "out")
