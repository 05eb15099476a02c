"""Whatever a decoder is fed, it ends in a value or in an error that its callers expect: the short form of the fuzzing.

`test_long.py` feeds the same targets for minutes, guided by which lines they reach. What it finds is kept below
`crashes/`, and fed here every time.
"""

import pytest
from hypothesis import HealthCheck, given, settings

from fuzz.inputs import fixed_inputs, inputs_of
from fuzz.targets import CRASHES, TARGETS, Target

EXAMPLES = 30
targets = pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])


@targets
def test_what_did_harm_once_does_none(target: Target) -> None:
    inputs = [*fixed_inputs(target)]
    for content in inputs:
        target.check(content)
    assert len(inputs) > len(target.seeds)


@targets
def test_any_bytes_end_in_a_value_or_an_expected_error(target: Target) -> None:
    fed = 0

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(inputs_of(target))
    def feed(content: bytes) -> None:
        nonlocal fed
        fed += 1
        target.check(content)

    feed()
    assert fed


@targets
def test_a_seed_is_understood(target: Target) -> None:
    assert target.seeds
    understood = 0
    for seed in target.seeds:
        try:
            target.run(seed)
        except target.expected:
            continue
        understood += 1
    assert understood or target.never_understood


def test_every_kept_input_belongs_to_a_target() -> None:
    assert {folder.name for folder in CRASHES.iterdir()} <= {target.name for target in TARGETS}
