"""The page of a proof: one HTML document that needs nothing beside it, in a light and a dark dress, and for paper.

It has no script and names no address, so it can be attached to a pull request, mailed or kept for an auditor, and looks
the same wherever it is opened. What colours say, words and numbers say too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from lockgate.faultpoints import FaultPoint
from lockgate.proof.counterexample import Counterexample
from lockgate.proof.drawing import draw_histogram, draw_time_line
from lockgate.proof.findings import Outcome
from lockgate.proof.report import FAILURES_MAX, MEANINGS, Report
from lockgate.proof.verdict import Cell

_SIGNS = {Outcome.HOLDS: "✓", Outcome.BROKEN: "✕", Outcome.UNKNOWN: "?", Outcome.NOT_PROMISED: "·"}
_CLASSES = {
    Outcome.HOLDS: "holds",
    Outcome.BROKEN: "broken",
    Outcome.UNKNOWN: "unknown",
    Outcome.NOT_PROMISED: "allowed",
}


def write_page(report: Report) -> str:
    """The whole document."""
    verdict, settings = report.verdict, report.verdict.settings
    title = escape(f"{settings.job}: {settings.guarantee.label}, {verdict.outcome.value}")
    parts = [
        _headline(report),
        _totals(report),
        _counterexample(verdict.counterexample),
        _heat_map(report),
        _checks(report),
        _recovery(report),
        _failures(report),
        _facts(report),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<style>{_STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _headline(report: Report) -> str:
    outcome = report.verdict.outcome
    return (
        f'<header class="verdict {_CLASSES[outcome]}">'
        f'<p class="word"><span aria-hidden="true">{_SIGNS[outcome]}</span> {outcome.value}</p>\n'
        f"<h1>{escape(report.sentence)}</h1></header>"
    )


def _totals(report: Report) -> str:
    verdict = report.verdict
    lost, duplicated = report.check("lost"), report.check("duplicated")
    cards = [
        ("trials", len(verdict.trials), ""),
        ("faults", verdict.strike_count, ""),
        ("kills", verdict.kill_count, ""),
        ("events", verdict.event_count, ""),
        ("rows lost", verdict.lost, _mood(verdict.lost, lost)),
        ("rows duplicated", verdict.duplicated, _mood(verdict.duplicated, duplicated)),
        ("trials broken", len(verdict.of(Outcome.BROKEN)), "broken" if verdict.of(Outcome.BROKEN) else "holds"),
        ("trials unknown", len(verdict.of(Outcome.UNKNOWN)), "unknown" if verdict.of(Outcome.UNKNOWN) else "holds"),
    ]
    return (
        '<section class="cards" aria-label="totals">'
        + "".join(
            f'<div class="card {mood}"><b>{number:,}</b><span>{name}</span></div>' for name, number, mood in cards
        )
        + "</section>"
    )


def _mood(number: int, outcome: Outcome) -> str:
    return "allowed" if outcome is Outcome.NOT_PROMISED and number else _CLASSES[outcome]


def _counterexample(example: Counterexample | None) -> str:
    if example is None:
        return ""
    return _section(
        "The counterexample",
        f"<p><b>{escape(example.checker)}:</b> {escape(example.reason)}.</p>\n"
        f'<div class="wide">{draw_time_line(example.moments)}</div>\n'
        f"<p>Run it again:</p>\n<pre>{escape(example.replay)}</pre>",
    )


def _heat_map(report: Report) -> str:
    table = report.verdict.table
    if not table:
        return ""
    most = max((cell.strike_count for cell in table.values()), default=0)
    head = "".join(f'<th scope="col">{escape(kind)}</th>' for kind in report.faults)
    rows = "".join(
        f'<tr><th scope="row"><code>{escape(point)}</code>{_passage(point)}</th>'
        + "".join(_cell(table.get((kind, point)), most) for kind in report.faults)
        + "</tr>\n"
        for point in report.points
    )
    return _section(
        "Where it struck",
        "<p>How often each fault struck at each point, in the order in which an epoch passes them.</p>\n"
        f'<div class="wide"><table class="heat"><thead><tr><th scope="col">point</th>{head}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>\n"
        '<p class="key"><span class="holds">✓ holds</span> <span class="broken">✕ broken</span>'
        ' <span class="unknown">? unknown</span> the deeper, the more often</p>',
    )


def _passage(point: str) -> str:
    """What happens at a point, in words."""
    known = FaultPoint.__members__.get(point)
    return "" if known is None else f"<small>{escape(known.value)}</small>"


def _cell(cell: Cell | None, most: int) -> str:
    if cell is None:
        return '<td class="none">·</td>'
    share = cell.strike_count / most if most else 0.0
    told = [
        f"{number:,} {name}"
        for number, name in ((cell.broken_count, "broken"), (cell.unknown_count, "unknown"))
        if number
    ]
    told += [f"{number:,} {name}" for name, number in cell.wrongs.items() if number]
    under = "".join(f"<small>{escape(text)}</small>" for text in told)
    return (
        f'<td class="{_CLASSES[cell.outcome]}" style="--share:{share:.2f}">'
        f"<b>{_SIGNS[cell.outcome]} {cell.strike_count:,}</b>{under}</td>"
    )  # fmt: skip


def _checks(report: Report) -> str:
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td class="sign {_CLASSES[outcome]}">{_SIGNS[outcome]} {outcome.value}</td>'
        f'<td class="number">{report.verdict.count(name):,}</td><td>{meaning}</td></tr>\n'
        for name, meaning in MEANINGS.items()
        for outcome in [report.check(name)]
    )
    aborted = sum(trial.aborted_row_count for trial in report.verdict.trials)
    told = f"{aborted:,} rows of transactions that were given up are in the logs."
    return _section(
        "What was checked",
        "<p>By readers apart from the job, while faults happened and afterwards, against the same job undisturbed."
        f" {told}</p>\n"
        f'<div class="wide"><table><thead><tr><th scope="col">check</th><th scope="col">result</th>'
        f'<th scope="col">found</th><th scope="col">what it counts or asks</th></tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>",
    )


def _recovery(report: Report) -> str:
    if report.recovery is None:
        return ""
    told = ", ".join(f"{name} <b>{seconds:.1f} s</b>" for name, seconds in report.recovery.items())
    return _section(
        "How long it took to recover",
        f"<p>From a fault to the first new row that a reader saw: {told}.</p>\n"
        f'<div class="wide">{draw_histogram(report.verdict.recoveries_seconds)}</div>',
    )


def _failures(report: Report) -> str:
    failures = report.failures()
    if not failures:
        return ""
    number = len(report.verdict.of(Outcome.BROKEN)) + len(report.verdict.of(Outcome.UNKNOWN))
    items = "".join(
        f'<li><span class="sign {_CLASSES[trial.outcome]}">{trial.outcome.value}</span> seed {trial.seed}, trial'
        f" {trial.number}: {escape(trial.reason)}<pre>{escape(replay)}</pre></li>\n"
        for trial, replay in failures
    )
    more = f"<p>The first {FAILURES_MAX} of {number:,}.</p>\n" if number > FAILURES_MAX else ""
    return _section("Trials that do not hold", f"{more}<ol>\n{items}</ol>")


def _facts(report: Report) -> str:
    settings = report.verdict.settings
    facts: Mapping[str, str] = {
        "job": settings.job,
        "declared guarantee": settings.guarantee.label,
        "workload": settings.workload,
        "seeds": ", ".join(map(str, report.seeds)) or "none",
        "job digest": settings.job_digest,
        **settings.versions,
        **report.machine,
    }
    return _section("How to do it again", f"<pre>{escape(report.command)}</pre>\n<dl>\n{_terms(facts.items())}</dl>")


def _terms(facts: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>\n" for name, text in facts)


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>"


_LIGHT = (
    "--paper:#fbfbfa;--card:#fff;--ink:#1c2430;--quiet:#5a6572;--line:#d9dde2;--bar:#5b8fb9;"
    "--good:26,127,85;--bad:196,43,43;--open:176,120,0;"
    "--event:#2f6fb0;--driver:#6b5bb5;--fault:#c42b2b;--epoch:#1a7f55;--reader:#a86a00"
)
_DARK = (
    "--paper:#14181d;--card:#1b2027;--ink:#eef1f4;--quiet:#a3aeb9;--line:#313942;--bar:#4f86b3;"
    "--good:62,180,125;--bad:240,96,96;--open:224,168,50;"
    "--event:#6aa9e6;--driver:#a99bf0;--fault:#f06060;--epoch:#3eb47d;--reader:#e0a832"
)
_STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--paper);color:var(--ink);line-height:1.45;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}}
main{{max-width:1040px;margin:0 auto;padding:2rem 1.2rem 3rem}}
.holds{{--mood:var(--good)}}.broken{{--mood:var(--bad)}}.unknown{{--mood:var(--open)}}.allowed{{--mood:120,130,140}}
.verdict{{border-left:10px solid rgb(var(--mood));background:rgba(var(--mood),.1);border-radius:6px;
padding:1.2rem 1.5rem}}
.word{{margin:0;font-size:2.6rem;line-height:1.1;font-weight:700;color:rgb(var(--mood));letter-spacing:.01em}}
h1{{margin:.5rem 0 0;font-size:1.15rem;font-weight:500}}
h2{{margin:2.4rem 0 .6rem;font-size:1.1rem}}
p{{margin:.4rem 0}}
small{{color:var(--quiet);font-weight:400}}
.cards{{display:grid;grid-template-columns:repeat(auto-fit,minmax(112px,1fr));gap:.6rem;margin-top:1rem}}
.card{{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.7rem .8rem}}
.card b{{display:block;font-size:1.5rem;line-height:1.2;font-variant-numeric:tabular-nums}}
.card span{{color:var(--quiet);font-size:.82rem}}
.card.holds b,.card.broken b,.card.unknown b{{color:rgb(var(--mood))}}
.wide{{overflow-x:auto}}
table{{border-collapse:collapse;width:100%;font-size:.88rem}}
th,td{{border-bottom:1px solid var(--line);padding:.4rem .6rem;text-align:left;vertical-align:top}}
thead th{{color:var(--quiet);font-weight:600}}
td.number{{text-align:right;font-variant-numeric:tabular-nums}}
.sign{{color:rgb(var(--mood));font-weight:600;white-space:nowrap}}
.heat{{border-collapse:separate;border-spacing:3px}}
.heat th,.heat td{{border:0}}
.heat th small{{display:block;max-width:30em}}
.heat thead th:not(:first-child){{text-align:center}}
.heat td{{text-align:center;vertical-align:middle;border-radius:4px;min-width:6em;font-variant-numeric:tabular-nums;
background:rgba(var(--mood),calc(.14 + .4*var(--share)))}}
.heat td.none{{background:none;color:var(--line)}}
.heat td small{{display:block;color:inherit}}
.key span{{display:inline-block;padding:.1rem .5rem;border-radius:4px;background:rgba(var(--mood),.3)}}
.key{{font-size:.85rem;color:var(--quiet)}}.key span{{color:var(--ink)}}
pre{{margin:.4rem 0;padding:.6rem .8rem;background:var(--card);border:1px solid var(--line);border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}}
dl{{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:.5rem 1.2rem;margin:.8rem 0}}
dt{{color:var(--quiet);font-size:.82rem}}dd{{margin:0;overflow-wrap:anywhere}}
li{{margin:.5rem 0}}
svg{{display:block;height:auto}}
svg text{{fill:var(--ink);font-size:13px}}svg .small{{font-size:12px;fill:var(--quiet)}}
.middle{{text-anchor:middle}}.end{{text-anchor:end}}.start{{text-anchor:start}}
.bar{{fill:var(--bar)}}.axis{{stroke:var(--line)}}
.thread{{fill:none;stroke:var(--quiet);stroke-opacity:.45;stroke-width:1.5}}
circle.event{{fill:var(--event)}}circle.driver{{fill:var(--driver)}}circle.fault{{fill:var(--fault)}}
circle.epoch{{fill:var(--epoch)}}circle.reader{{fill:var(--reader)}}
@media print{{
:root{{color-scheme:light;{_LIGHT}}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
main{{max-width:none;padding:0}}.wide{{overflow:visible}}svg{{max-width:100%}}
tr,svg,pre,.card,.verdict{{break-inside:avoid}}h2{{break-after:avoid}}
}}
"""
