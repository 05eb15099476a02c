"""Every fault at every point that was ever killed here is still killed: matrix.txt says so, and the tests follow it."""

import ast
from collections import Counter
from pathlib import Path

from kills.kill_matrix import DRIVER, MATRIX, SAMPLE_SEED, TASK, read_cases
from lockgate.lab.rig.faults import Kind

KILLS_NOTHING = {
    "test_all_these_kills_are_two_hundred_and_more_over_every_point",
    "test_the_producer_id_is_rotated_and_the_ledger_continues",
}
CASES = read_cases(MATRIX.read_text().splitlines())
ALL = [case for found in CASES.values() for case in found]
# So many cases and faults there are; more are welcome, and fewer need a reason.
COUNTS = {"cases": 70, "samples": 10, "faults": 615}


def test_no_case_and_no_fault_has_disappeared() -> None:
    samples = sum(case.is_("sample") for case in ALL)
    assert {"cases": len(ALL), "samples": samples, "faults": sum(len(case.strikes) for case in ALL)} == COUNTS


def test_every_point_is_hit_in_every_kind_of_process() -> None:
    hit = Counter((one.kind, one.point) for case in ALL for one in case.strikes)
    assert all(hit[Kind.KILL_DRIVER, point] for point in DRIVER)
    assert all(hit[kind, point] for kind in (Kind.KILL_WORKER, Kind.KILL_EXECUTOR) for point in TASK)


def test_another_seed_draws_other_points_for_the_samples_and_other_events() -> None:
    other = read_cases(MATRIX.read_text().splitlines(), SAMPLE_SEED + 1)
    pairs = list(zip(ALL, (case for found in other.values() for case in found), strict=True))
    assert all(two.seed == one.seed + 1 for one, two in pairs)
    drawn = [({*one.strikes}, {*two.strikes}) for one, two in pairs if one.is_("drawn")]
    assert drawn
    assert all(one != two for one, two in drawn)
    assert all({*one.strikes} == {*two.strikes} for one, two in pairs if not one.is_("drawn"))


def test_every_test_that_kills_takes_its_cases_from_the_matrix() -> None:
    taking, marked = set(), set()
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                decorators = [ast.unparse(one) for one in node.decorator_list]
                taking |= {node.name} if "cases" in decorators else set()
                marked |= {node.name} if {"pytest.mark.system", "pytest.mark.prove"} & {*decorators} else set()
    assert taking == {*CASES}
    assert marked <= KILLS_NOTHING
