"""The last word of a run."""

import pytest

from lockgate.cli.job import LiveLine


@pytest.mark.parametrize(
    ("unended", "rest"),
    [
        (0, ""),
        (37_000, "; up to 37,000 more of the epoch that was stopped"),
        (None, "; an unknown number more of the epoch that was stopped"),
    ],
)
def test_events_of_an_epoch_that_was_stopped_are_reported_beside_those_of_epochs_that_ended(
    unended: int | None, rest: str
) -> None:
    said: list[str] = []
    LiveLine(as_json=False, say=said.append).finish(unended)
    assert said[0].startswith("done: 0 events in ")
    assert said[0].endswith(f" s{rest}")
