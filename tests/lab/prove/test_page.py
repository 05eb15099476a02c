"""The page stands alone and shows the figures; so do the text and the facts."""

import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lockgate.faultpoints import FaultPoint
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.counterexample import LANES, Counterexample, Moment
from lockgate.lab.prove.page import write_page
from lockgate.lab.prove.report import MEANINGS, Report, cell_text
from lockgate.lab.prove.settings import Settings
from lockgate.lab.prove.verdict import Check, Trial, Verdict, unknown
from lockgate.lab.rig.judge.findings import Outcome

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
SELF_CLOSING = {"line"}
HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror='a()'>\"&lt; \x00\x1b[2J\u202e\ud800 Grüße, 你好 🚀"


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
KINDS, POINTS = [f"kind of fault {number}" for number in range(25)], [*(point.name for point in FaultPoint), *"ABC"]
STRIKES = [(kind, point) for kind in KINDS for point in POINTS][::3]
LARGE = report(
    *(replace(trial(number), due=(strike,), struck=(strike,)) for number, strike in enumerate((STRIKES * 6)[:1002]))
)
HOSTILE_ONE = Report(
    Verdict(
        replace(SETTINGS, job=HOSTILE, file=HOSTILE, workload=HOSTILE, job_digest=HOSTILE, versions={HOSTILE: HOSTILE}),
        (
            replace(
                trial(0, Outcome.BROKEN, duplicated=1),
                due=((HOSTILE, HOSTILE),),
                struck=((HOSTILE, HOSTILE),),
                counterexample=Counterexample(HOSTILE, HOSTILE, (Moment(0.5, "reader", HOSTILE),), HOSTILE),
            ),
            unknown(seed=1, number=1, due=[(HOSTILE, HOSTILE)], reason=HOSTILE, seconds=1.0),
        ),
    ),
    machine={HOSTILE: HOSTILE},
    command=HOSTILE,
    skipped={HOSTILE: HOSTILE},
    unsteady=(HOSTILE,),
)
ALL = [HOLDING, BROKEN, UNKNOWN, NOTHING, LARGE]
NAMES = ["holding", "broken", "unknown", "nothing", "large"]


def weak(guarantee: Guarantee, **allowed: int) -> Report:
    """What a job with a weaker guarantee is told of, with so much of what it allows."""
    one = trial(0)
    checks = {**one.checks, **{name: Check(Outcome.NOT_PROMISED, count) for name, count in allowed.items()}}
    given = report(replace(one, checks=checks))
    return replace(given, verdict=replace(given.verdict, settings=replace(SETTINGS, guarantee=guarantee)))


class Page(HTMLParser):
    """Its text, and that its tags are in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.cells: dict[str, list[str]] = {}  # the titles of a fault's cells, by what the fault is called
        self.points: list[str] = []
        self._row = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "srcset", "data", "action", "xlink:href", "style"}
        assert not any(name.startswith("on") for name, _ in attrs)
        given = dict(attrs)
        if tag == "th":
            assert given.get("scope") in ("col", "row", "colgroup", "rowgroup")
        if tag == "td" and "title" in given:
            self.cells.setdefault(self._row, []).append(given["title"] or "")
            self.points.append(given["data-point"] or "")
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SELF_CLOSING

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)
        if self._open[-1:] == ["th"]:
            self._row = data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_page_stands_alone(given: Report) -> None:
    page = write_page(given)
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & {*parsed.tags}
    for reference in ("http:", "https:", "//", "@import", "url(", "javascript:"):
        assert reference not in page
    assert len(page.encode()) < 300_000


def test_nothing_that_a_row_or_a_name_holds_becomes_a_part_of_the_page() -> None:
    page = write_page(HOSTILE_ONE)
    parsed = Page(page)
    assert not {"script", "img"} & {*parsed.tags}
    page.encode()  # no half of a pair of surrogates is left
    assert not [one for one in page if not one.isprintable() and one != "\n"]
    assert parsed.text.count(r"<script>alert(1)</script>") >= 15
    assert r"\x00\x1b[2J\u202e\ud800 Grüße, 你好 🚀" in parsed.text


def test_nothing_that_a_row_holds_moves_the_cursor_of_a_terminal() -> None:
    text = HOSTILE_ONE.as_text(width=80)
    assert not [one for one in text if not one.isprintable() and one != "\n"]


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
    assert "12 lost (which it allows), 0 duplicated" in report(lost).sentence


@pytest.mark.parametrize(
    ("given", "promised", "happened"),
    [
        (weak(Guarantee.AT_MOST_ONCE, lost=12), "nothing is doubled", "12 lost, beside 1,900 rows that came."),
        (weak(Guarantee.AT_LEAST_ONCE, duplicated=3, foreign=1), "nothing is lost", "3 duplicated, 1 foreign, beside"),
        (weak(Guarantee.EXACTLY_ONCE, duplicated=0), "rows may be written twice", "What it allows did not happen."),
        (HOLDING, "nothing is lost, doubled", ""),
    ],
)
def test_what_was_promised_is_said_and_what_happened_beside_it(given: Report, promised: str, happened: str) -> None:
    assert given.verdict.holds
    for text in (Page(write_page(given)).text, " ".join(given.as_text(width=80).split())):
        assert given.promise in text
        assert promised in given.promise
        assert happened in text
        assert ("What it allows" in text) is bool(happened)


def test_what_could_not_be_judged_is_not_reported_as_not_happened() -> None:
    given = replace(UNKNOWN.verdict, settings=replace(SETTINGS, guarantee=Guarantee.AT_MOST_ONCE))
    assert replace(UNKNOWN, verdict=given).allowed == ""


def test_what_was_not_promised_is_separate_although_a_trial_is_unknown() -> None:
    one = weak(Guarantee.AT_MOST_ONCE, lost=4)
    given = replace(one, verdict=replace(one.verdict, trials=(*one.verdict.trials, *UNKNOWN.verdict.trials[1:2])))
    text = Page(write_page(given)).text
    assert text.index(" duplicated ? unknown in 1 of 2") < text.index("not promised") < text.index(" lost ? unknown")


def test_faults_that_were_skipped_are_reported_with_the_reason() -> None:
    skipped = {"fill disk": "no <tmpfs> can be mounted here", "kill postgres": "no sink in PostgreSQL"}
    given = replace(HOLDING, skipped=skipped)
    assert given.as_json()["skipped"] == skipped
    for text in (Page(write_page(given)).text, " ".join(given.as_text(width=80).split())):
        assert all(f"{kind} {why}" in text for kind, why in skipped.items())
    assert "2 kinds of faults could not be tried here: fill disk, kill postgres." in write_page(given)
    assert "tried here" not in write_page(HOLDING) + HOLDING.as_text(width=80)


def test_the_reason_of_every_unknown_is_reported() -> None:
    why = "process 'gaps' sets timers, which are due when an epoch ends (process 'gaps', declared at payments.py:7)"
    checks = {**trial(0).checks, "lost": Check(Outcome.UNKNOWN, reason="nothing to <compare> with")}
    given = replace(report(replace(trial(0), checks=checks)), unsteady=(why,))
    page, text = write_page(given), " ".join(given.as_text(100).split())
    assert "Why rows were not compared" in page
    for told in (why, "not known: nothing to <compare> with"):
        assert told in " ".join(Page(page).texts)
        assert told in text
    facts = given.as_json()
    assert facts["unsteady"] == [why]
    assert facts["checks"]["lost"]["why_unknown"] == "nothing to <compare> with"
    assert facts["checks"]["duplicated"]["why_unknown"] == ""
    assert "no <broker>" in UNKNOWN.as_text(100)
    assert "not known" not in HOLDING.as_text(100)
    assert "Why rows were not compared" not in write_page(HOLDING)


def test_a_check_that_was_not_asked_in_every_trial_does_not_hold() -> None:
    assert UNKNOWN.check("lost") is Outcome.UNKNOWN
    assert HOLDING.check("lost") is Outcome.HOLDS


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_every_fault_that_was_due_has_its_square(given: Report) -> None:
    parsed = Page(write_page(given))
    titles = [title for found in parsed.cells.values() for title in found]
    table = given.verdict.table
    assert len(titles) == len(table)
    for (kind, point), cell in table.items():
        told = f"{kind} at {point}: struck {cell.strike_count:,} times in {cell.trial_count:,} trials"
        assert any(title.startswith(told) for title in parsed.cells[kind])
        if cell.outcome is Outcome.HOLDS:
            assert f"✓ {cell.strike_count:,}" in parsed.text
    assert {*parsed.points} == {*given.points}


def test_points_stand_in_the_order_of_an_epoch_and_faults_in_that_of_the_docs() -> None:
    assert HOLDING.points == [point.name for point in FaultPoint][:7]
    assert HOLDING.faults == ["kill driver", "kill worker", "stop worker"]
    assert LARGE.points[-3:] == ["A", "B", "C"]
    assert UNKNOWN.points[-1] == "any moment"
    text = Page(write_page(HOLDING)).text
    assert "fault " + " ".join(HOLDING.points) + " all points kill driver" in text
    assert all(f"{point.name} {point.value}" in text for point in list(FaultPoint)[:7])


def test_a_square_that_does_not_hold_says_so_without_colour() -> None:
    text = Page(write_page(BROKEN)).text
    assert "✕ 1 of 1" in text
    assert "? 1 of 1" not in text
    assert "? 14 of 14" in Page(write_page(UNKNOWN)).text


def test_every_check_is_reported_with_its_meaning() -> None:
    for given in ALL:
        text = Page(write_page(given)).text
        assert all(meaning in text for meaning in MEANINGS.values())
    assert "duplicated ✕ broken in 1 of 3 3 copies" in Page(write_page(BROKEN)).text


def test_a_broken_one_shows_its_counterexample_and_how_to_see_it_again() -> None:
    page = write_page(BROKEN)
    text = Page(page).text
    assert EXAMPLE.replay in text
    assert "is in 'out' 2 times" in text
    assert all(f'<tr class="{lane}"' in page for lane in LANES)
    assert "2.000 s +1.000 ✕ fault fault <2> " in text
    assert "Other trials" not in text
    assert "The counterexample" not in write_page(HOLDING)


def test_trials_that_do_not_hold_are_named_up_to_a_number() -> None:
    text = Page(write_page(UNKNOWN)).text
    assert "The first 10 of 14." in text
    assert text.count("no <broker>") == 10 + 1  # and the first of them beside the check
    assert "--seed 1 --trial 10" in text


@pytest.mark.parametrize("longest", [0.0, 0.004, 0.7, 3.0, 23.9, 24.0, 600.0, 86_400.0])
def test_the_histogram_has_few_bins_and_all_recoveries(longest: float) -> None:
    page = write_page(report(replace(trial(0), recoveries_seconds=(0.0, longest / 2, longest))))
    counts = [int(found) for found in re.findall(r"<rect [^>]*><title>[^:]*: (\d+)</title></rect>", page)]
    assert 1 <= len(counts) == page.count("<rect") <= 3
    assert sum(counts) == 3


def test_a_long_text_is_whole_in_the_time_line() -> None:
    assert Page(write_page(BROKEN)).text.count("x" * 100) == len(EXAMPLE.moments)


def test_recoveries_are_reported_by_rank() -> None:
    given = report(replace(trial(0), recoveries_seconds=tuple(float(number) for number in range(1, 101))))
    assert given.recovery == {"p50": 50.0, "p99": 99.0, "longest": 100.0}
    assert report(replace(trial(0), recoveries_seconds=())).recovery is None


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_facts_are_plain_data_with_the_names_of_the_verdict(given: Report) -> None:
    facts = json.loads(json.dumps(given.as_json()))
    verdict = given.verdict
    assert (facts["holds"], facts["lost"], facts["duplicated"]) == (verdict.holds, verdict.lost, verdict.duplicated)
    assert facts["verdict"] == verdict.outcome.value
    assert (facts["counterexample"] is None) is (verdict.counterexample is None)
    assert sum(cell["strike_count"] for cell in facts["table"]) == facts["faults"] == verdict.strike_count


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_text_fits_a_terminal(given: Report, width: int) -> None:
    text = given.as_text(width)
    assert text.startswith(given.verdict.outcome.value.upper())
    assert " ".join(given.sentence.split()) in " ".join(text.split())
    assert not [line for line in text.splitlines() if len(line) > width and "again:" not in line]


@pytest.mark.parametrize("given", ALL, ids=NAMES)
def test_the_text_has_every_fault_that_was_due(given: Report) -> None:
    lines = given.as_text(width=10_000).splitlines()
    for (kind, point), cell in given.verdict.table.items():
        line = next(line for line in lines if line.startswith(f"  {kind} "))
        assert f" {point} {cell_text(cell)}" in line


def test_the_text_has_the_counterexample_and_says_it_once() -> None:
    text = BROKEN.as_text(width=100)
    assert "1 (1 broken)" in text
    assert text.count(f"again: {EXAMPLE.replay}") == 1
    assert "reader <4>" in text
    assert "duplicated         broken in 1 of 3        3" in text


def test_what_a_check_means_is_printed_if_there_is_room() -> None:
    assert MEANINGS["lost"] in HOLDING.as_text(width=120)
    assert MEANINGS["lost"] not in HOLDING.as_text(width=80)
