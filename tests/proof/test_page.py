"""The page stands alone and shows the figures; so do the text and the facts."""

import json
import random
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lockgate.faultpoints import FaultPoint
from lockgate.guarantees import Guarantee
from lockgate.proof.counterexample import LANES, Counterexample, Moment
from lockgate.proof.drawing import draw_histogram, draw_time_line
from lockgate.proof.findings import Outcome
from lockgate.proof.page import write_page
from lockgate.proof.report import MEANINGS, Report
from lockgate.proof.settings import Settings
from lockgate.proof.verdict import Check, Trial, Verdict, unknown

SETTINGS = Settings(
    job="payments <b>",
    guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    file="payments.py",
    parameters={},
    options={"--events": "2000"},
    workload="2,000 generated events & a kill",
    job_digest="abc",
    versions={"lockgate": "0.1.0", "pyspark": "4.3.0"},
)
EXAMPLE = Counterexample(
    checker="duplicated",
    reason="row k: <v> is in 'out' 2 times",
    moments=tuple(Moment(float(index), lane, f"{lane} <{index}> " + "x" * 100) for index, lane in enumerate(LANES)),
    replay="lockgate prove payments.py --events 2000 --seed 1 --trial 4",
)
SELF_CLOSING = {"line", "circle", "polyline"}


def trial(number: int, outcome: Outcome = Outcome.HOLDS, **counts: int) -> Trial:
    rng = random.Random(number)
    checks = {name: Check(Outcome.HOLDS) for name in MEANINGS}
    checks["duplicated"] = Check(outcome, counts.get("duplicated", 0), "one <row> twice")
    kind = ("kill driver", "kill worker", "stop worker")[number % 3]
    strike = (kind, [point.name for point in FaultPoint][number % 7])
    took = tuple(rng.uniform(4, 20) for _ in range(2))
    return Trial(1 + number % 2, number, (strike,), (strike,), checks, 2000, 1900, 17, took, 30.0)


def report(*trials: Trial) -> Report:
    verdict = Verdict(SETTINGS, trials)
    return Report(verdict, machine={"cores": "2", "system": "Linux"}, command="lockgate prove payments.py --kills 1200")


HOLDING = report(*(trial(number) for number in range(1200)))
BROKEN = report(trial(0), replace(trial(4, Outcome.BROKEN, duplicated=3), counterexample=EXAMPLE), trial(5))
UNKNOWN = report(
    trial(0),
    *(
        unknown(seed=1, number=number, due=[("kill driver", "any moment")], reason="no <broker>", seconds=1.0)
        for number in range(1, 15)
    ),
)
NOTHING = report()
ALL = [HOLDING, BROKEN, UNKNOWN, NOTHING]
NAMES = ["holding", "broken", "unknown", "nothing"]


class Page(HTMLParser):
    """Its text, and that its tags are in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "srcset", "data", "action", "xlink:href"}
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SELF_CLOSING

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_page_stands_alone(given: Report) -> None:
    page = write_page(given)
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & {*parsed.tags}
    for reference in ("http:", "https:", "//", "@import", "url("):
        assert reference not in page


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_page_says_what_was_proven_and_how(given: Report) -> None:
    text = Page(write_page(given)).text
    verdict = given.verdict
    assert verdict.outcome.value in text
    assert given.sentence in text
    for part in ("payments <b>", "end-to-end exactly-once", "2,000 generated events & a kill", "4.3.0", "Linux"):
        assert part in text
    assert given.command in text
    assert f"{verdict.event_count:,} events" in text
    assert f"{verdict.kill_count:,} kills" in text
    assert f"{verdict.duplicated:,} rows duplicated" in text
    assert f"{len(verdict.of(Outcome.UNKNOWN)):,} trials unknown" in text


def test_the_sentence_fits_the_verdict() -> None:
    assert HOLDING.sentence == (
        "payments <b> kept its guarantee, end-to-end exactly-once, through 1,200 faults in 1,200 trials:"
        " 2,400,000 events, 0 lost, 0 duplicated."
    )
    assert "broke its guarantee, end-to-end exactly-once, in 1 of 3 trials" in BROKEN.sentence
    assert "3 duplicated" in BROKEN.sentence
    assert "14 of 15 trials could not be judged" in UNKNOWN.sentence
    assert "no trial has been run" in NOTHING.sentence


def test_what_a_guarantee_allows_is_said_to_be_allowed() -> None:
    lost = replace(trial(0), checks={**trial(0).checks, "lost": Check(Outcome.NOT_PROMISED, 12)})
    assert "12 lost, which it allows, 0 duplicated" in report(lost).sentence


def test_a_check_that_was_not_asked_in_every_trial_does_not_hold() -> None:
    assert UNKNOWN.check("lost") is Outcome.UNKNOWN
    assert HOLDING.check("lost") is Outcome.HOLDS


def test_the_heat_map_has_every_fault_and_point_in_the_order_of_an_epoch() -> None:
    page = write_page(HOLDING)
    places = [page.index(f"<code>{point.name}</code>") for point in list(FaultPoint)[:7]]
    assert places == sorted(places)
    cells = HOLDING.verdict.table
    assert len(cells) == 21
    assert page.count("style=") == 21
    assert all(f"<b>✓ {cell.strike_count:,}</b>" in page for cell in cells.values())
    assert UNKNOWN.points[-1] == "any moment"


def test_a_broken_one_shows_its_counterexample_and_how_to_see_it_again() -> None:
    page = write_page(BROKEN)
    text = Page(page).text
    assert EXAMPLE.replay in text
    assert "is in 'out' 2 times" in text
    assert all(f'<circle class="{lane}"' in page for lane in LANES)
    assert "fault <2> " in text
    assert "The counterexample" not in write_page(HOLDING)


def test_trials_that_do_not_hold_are_named_up_to_a_number() -> None:
    text = Page(write_page(UNKNOWN)).text
    assert "The first 10 of 14." in text
    assert text.count("no <broker>") == 10
    assert "--seed 1 --trial 10" in text


@pytest.mark.parametrize("longest", [0.0, 0.004, 0.7, 3.0, 23.9, 24.0, 600.0, 86_400.0])
def test_the_histogram_has_few_bins_and_all_recoveries(longest: float) -> None:
    drawn = draw_histogram([0.0, longest / 2, longest])
    bars = drawn.count("<rect")
    assert 1 <= bars <= 3
    counts = [int(line.partition(": ")[2].partition("<")[0]) for line in drawn.splitlines() if "<rect" in line]
    assert sum(counts) == 3


def test_a_text_that_is_too_long_for_the_time_line_is_whole_in_its_title() -> None:
    drawn = draw_time_line(EXAMPLE.moments)
    assert "x" * 100 in drawn
    assert "…" in drawn


def test_recoveries_are_told_by_rank() -> None:
    given = report(replace(trial(0), recoveries_seconds=tuple(float(number) for number in range(1, 101))))
    assert given.recovery == {"half within": 50.0, "95 % within": 95.0, "longest": 100.0}
    assert report(replace(trial(0), recoveries_seconds=())).recovery is None


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_facts_are_plain_data_with_the_names_of_the_verdict(given: Report) -> None:
    facts = json.loads(json.dumps(given.as_json()))
    verdict = given.verdict
    assert (facts["holds"], facts["lost"], facts["duplicated"]) == (verdict.holds, verdict.lost, verdict.duplicated)
    assert facts["verdict"] == verdict.outcome.value
    assert (facts["counterexample"] is None) is (verdict.counterexample is None)
    assert sum(cell["strike_count"] for cell in facts["table"]) == facts["faults"] == verdict.strike_count


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_text_fits_a_terminal(given: Report) -> None:
    text = given.as_text(width=100)
    assert text.startswith(given.verdict.outcome.value.upper())
    assert " ".join(given.sentence.split()) in " ".join(text.split())


def test_the_text_has_the_table_and_the_counterexample() -> None:
    text = BROKEN.as_text(width=100)
    assert "kill driver" in text
    assert "1, 1 broken" in text
    assert f"again: {EXAMPLE.replay}" in text
    assert "reader <4>" in text
