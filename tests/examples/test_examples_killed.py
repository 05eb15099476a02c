"""Every example is killed while it runs, and goes on: what readers saw is held against its promise and its answer.

A sample of one in `make test`, all others in `make prove-all`.
"""

from pathlib import Path

import pytest

from lockgate.testing.proving import Prove

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = "app_tracking"
# Made payments would share ids, of which the table has one each; test_fraud_detection.py has that one killed.
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "fraud_detection")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system if name == SAMPLE else pytest.mark.prove) for name in NAMES]
)
def test_example_keeps_its_promise_although_its_driver_is_killed(name: str, lockgate_prove: Prove) -> None:
    verdict = lockgate_prove(
        EXAMPLES / f"{name}.py", kills=2, faults=["kill driver"], events=600, rows_per_epoch=60, seed=3
    )
    assert verdict.kill_count == 2
    assert verdict.lost == 0
