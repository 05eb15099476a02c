"""Content that is small, or of the size that a decoder takes, does not fill the memory."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.prove
@pytest.mark.process
def test_no_decoder_needs_more_than_half_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.limited"], cwd=TESTS, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout.splitlines() == ["done"], done.stdout + done.stderr[-2000:]
