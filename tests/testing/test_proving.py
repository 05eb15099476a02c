"""A user's test that proves a job: the fixture, and what a test is told that fails."""

import textwrap
from pathlib import Path

import pytest

from lockgate.testing import NotProven, prove

pytest_plugins = ["pytester"]

JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream


    def job(guarantee: str = "END_TO_END_EXACTLY_ONCE") -> Job:
        source = KafkaSource(topic="payments", servers="far.example:9092", value="id BIGINT, cents INT")
        rows = stream("payments", source)
        out = KafkaSink(topic="large", servers="far.example:9092")
        return Job("large", rows.where("cents >= 200").to("large", out), guarantee=Guarantee[guarantee])
"""


@pytest.mark.prove
def test_one_line_proves_a_job_in_a_test_of_a_users_own(pytester: pytest.Pytester) -> None:
    (pytester.path / "payments.py").write_text(textwrap.dedent(JOB))
    pytester.makepyfile(
        """
        def test_payments_keep_their_promise(lockgate_prove):
            verdict = lockgate_prove("payments.py", kills=2, events=300, faults=["kill driver"], points=["MARKER"])
            assert (verdict.kill_count, verdict.lost, verdict.duplicated) == (2, 0, 0)
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)
    assert done.ret == 0


@pytest.mark.prove
def test_what_is_not_proven_fails_the_test_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "payments.py"
    # Random values: no two runs are alike, so nothing can be compared.
    text = textwrap.dedent(JOB).replace('.where("cents >= 200")', '.select("id", luck="rand()")')
    file.write_text(text)
    with pytest.raises(NotProven, match="not known whether") as told:
        prove(file, root=tmp_path, kills=1, events=300, faults=["kill driver"], points=["MARKER"])
    assert "proof.html" in str(told.value)


def test_the_fixture_is_available_to_every_test(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("lockgate")
