"""The page of a proof: one HTML document that needs nothing beside it, in a light and a dark dress, and for paper.

It has no script and names no address, so it can be attached to a pull request, mailed or kept for an auditor, and looks
the same wherever it is opened. What colours say, words and signs say too. Rows of a job may hold anything: whatever is
not ours is escaped, and characters that cannot be seen are spelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import groupby

from lockgate.faultpoints import FaultPoint
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.proof.counterexample import visible
from lockgate.proof.drawing import draw_histogram, draw_time_line
from lockgate.proof.report import ABOUT_THE_TRIALS, FAILURES_MAX, MEANINGS, UNSTEADY, Report
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
    title = _shown(f"{settings.job}: {settings.guarantee.label}, {verdict.outcome.value}")
    parts = [
        _headline(report),
        _totals(report),
        _counterexample(report),
        _map(report),
        _unsteady(report),
        _skipped(report),
        _checks(report),
        _recovery(report),
        _failures(report),
        _method(report),
        _facts(report),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<style>{_STYLE}</style></head><body><main>\n{body}\n</main></body></html>\n"
    )


def _shown(text: str) -> str:
    return escape(visible(text))


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>\n{body}</section>"


def _headline(report: Report) -> str:
    outcome, settings = report.verdict.outcome, report.verdict.settings
    told = "".join(f"<p>{_shown(text)}</p>\n" for text in (report.promise, report.allowed, report.left_out) if text)
    return (
        f'<header class="verdict {_CLASSES[outcome]}"><p class="what">Proof of <b>{_shown(settings.job)}</b>,'
        f" declared {settings.guarantee.label}</p>\n"
        f'<p class="word"><span aria-hidden="true">{_SIGNS[outcome]}</span>{outcome.value}</p>\n'
        f"<h1>{_shown(report.sentence)}</h1>\n{told}</header>"
    )


def _totals(report: Report) -> str:
    verdict = report.verdict
    broken, unknown = len(verdict.of(Outcome.BROKEN)), len(verdict.of(Outcome.UNKNOWN))
    fine = "holds" if verdict.trials else ""
    cards = [
        _card(f"{len(verdict.trials):,}", "trials"),
        _card(f"{verdict.strike_count:,}", "faults"),
        _card(f"{verdict.kill_count:,}", "kills", "of these faults"),
        _card(f"{verdict.event_count:,}", "events", "sent"),
        _card(f"{report.row_count:,}", "rows", "read in the end"),
        _check_card(report, "lost"),
        _check_card(report, "duplicated"),
        _card(f"{broken:,}", "trials broken", mood="broken" if broken else fine),
        _card(f"{unknown:,}", "trials unknown", mood="unknown" if unknown else fine),
    ]
    if report.recovery is not None:
        took = report.recovery
        cards.append(_card(f"{took['p50']:.1f} s", "to recover, p50", f"p99 {took['p99']:.1f} s"))
    return f'<section class="cards" aria-label="totals">{"".join(cards)}</section>'


def _check_card(report: Report, checker: str) -> str:
    result = report.result(checker)
    note = "promised never" if result == Outcome.HOLDS.value else result
    return _card(f"{report.verdict.count(checker):,}", f"rows {checker}", note, _CLASSES[report.check(checker)])


def _card(number: str, name: str, note: str = "", mood: str = "") -> str:
    under = f"<small>{note}</small>" if note else ""
    return f'<div class="card {mood}"><b>{number}</b> <span>{name}</span> {under}</div>\n'


def _counterexample(report: Report) -> str:
    example = report.verdict.counterexample
    if example is None:
        return ""
    return _section(
        "The counterexample",
        f'<p class="reason"><b>{_shown(example.checker)}:</b> {_shown(example.reason)}.</p>\n'
        f"{draw_time_line(example.moments)}\n"
        f"<p>The command that runs this trial again:</p>\n{_command(example.replay)}",
    )


def _command(text: str) -> str:
    return f"<pre>{_shown(text)}</pre>"


# -- every fault at every point ---------------------------------------------------------------------------------------


def _map(report: Report) -> str:
    """A square for each fault at each point; on a phone, which has no room for that, a list of points by fault."""
    table, points = report.verdict.table, report.points
    if not table:
        return ""
    sides = "".join(
        f'<th role="columnheader" scope="colgroup" colspan="{len([*members])}">{side}</th>'
        for side, members in groupby(points, key=_side)
    )
    head = "".join(
        f'<th role="columnheader" scope="col"{_edge(points, index)}><span>{_shown(point)}</span></th>'
        for index, point in enumerate(points)
    )
    rows = []
    for kind in report.faults:
        struck = sum(cell.strike_count for (one, _), cell in table.items() if one == kind)
        cells = "".join(
            _cell(kind, point, table.get((kind, point)), _edge(points, index)) for index, point in enumerate(points)
        )
        rows.append(
            f'<tr role="row"><th role="rowheader" scope="row">{_shown(kind)}</th>{cells}'
            f'<td role="cell" class="sum">{struck:,}</td></tr>\n'
        )
    return _section(
        "Every fault, at every point",
        "<p>How often each fault struck at each point that an epoch passes, from its beginning on the left to its end."
        " An empty square: it was not due there.</p>\n"
        '<div class="wide"><table class="map" role="table"><thead role="rowgroup">'
        f'<tr role="row"><td></td>{sides}<td></td></tr>\n<tr role="row"><th role="columnheader" scope="col">fault</th>'
        f'{head}<th role="columnheader" scope="col"><span>all points</span></th></tr></thead>\n'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table></div>\n'
        '<ul class="key"><li><span class="holds">✓ 12</span> struck 12 times, and all of it held</li>'
        '<li><span class="broken">✕ 1 of 4</span> of 4 trials in which it was due there, 1 is broken</li>'
        '<li><span class="unknown">? 1 of 4</span> 1 of 4 could not be judged</li></ul>\n'
        f"{_passages(points)}",
    )


def _side(point: str) -> str:
    """Who passes a point, the driver or a task; of other places, what they are."""
    known = FaultPoint.__members__.get(point)
    return known.value.partition(":")[0] if known else "request" if point.isupper() else ""


def _edge(points: list[str], index: int) -> str:
    """A class for the first column of another side."""
    return ' class="edge"' if index and _side(points[index]) != _side(points[index - 1]) else ""


def _cell(kind: str, point: str, cell: Cell | None, edge: str) -> str:
    if cell is None:
        return f"<td{edge}></td>"
    told = [f"struck {cell.strike_count:,} times in {cell.trial_count:,} trials"]
    told += [f"{cell.broken_count:,} broken"] if cell.broken_count else []
    told += [f"{cell.unknown_count:,} unknown"] if cell.unknown_count else []
    told += [f"{number:,} {name}" for name, number in cell.wrongs.items() if number]
    signs = [f"✕ {cell.broken_count:,}"] if cell.broken_count else []
    signs += [f"? {cell.unknown_count:,}"] if cell.unknown_count else []
    body = f"<b>✓ {cell.strike_count:,}</b>"
    if signs:
        body = f"<b>{' '.join(signs)}</b> <small>of {cell.trial_count:,}</small>"
    classes = f"{_CLASSES[cell.outcome]}{' edge' if edge else ''}"
    title = _shown(f"{kind} at {point}: {', '.join(told)}")
    return f'<td role="cell" class="{classes}" data-point="{_shown(point)}" title="{title}">{body}</td>'


def _passages(points: Iterable[str]) -> str:
    """What happens at the points, in words."""
    known = [FaultPoint[point] for point in points if point in FaultPoint.__members__]
    told = "".join(f"<div><dt>{one.name}</dt><dd>{escape(one.value)}</dd></div>\n" for one in known)
    return f'<dl class="passages">\n{told}</dl>' if told else ""


def _unsteady(report: Report) -> str:
    if not report.unsteady:
        return ""
    items = "".join(f"<li>{_shown(reason)}</li>\n" for reason in report.unsteady)
    return _section("Why rows were not compared", f"<p>{UNSTEADY}</p>\n<ul>\n{items}</ul>")


def _skipped(report: Report) -> str:
    if not report.skipped:
        return ""
    return _section(
        "What could not be tried here",
        "<p>These faults were skipped on this machine; nothing is said about them.</p>\n"
        f'<dl class="skipped">\n{_terms(report.skipped)}</dl>',
    )


# -- what was found ---------------------------------------------------------------------------------------------------


def _why_unknown(report: Report, checker: str) -> str:
    why = report.why_unknown(checker)
    return f"<p><small>not known: {_shown(why)}</small></p>" if why else ""


def _checks(report: Report) -> str:
    about = [name for name in MEANINGS if name in ABOUT_THE_TRIALS]
    loose = [name for name in MEANINGS if name not in about and report.is_loose(name)]
    promised = [name for name in MEANINGS if name not in (*about, *loose)]
    groups = {
        "promised" if report.row_count else "of which nothing is known": promised,
        "not promised, or not to be asked of this job: counted, and decides nothing": loose,
        "whether the trials are worth something": about,
    }
    aborted = sum(trial.aborted_row_count for trial in report.verdict.trials)
    told = (
        f" In the logs are {aborted:,} rows of transactions that were given up; readers may see none."
        if aborted
        else ""
    )
    names = ("check", "result", "found", "what it counts or asks")
    head = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in names)
    body = "".join(
        f'<tbody role="rowgroup"><tr role="row" class="group"><th role="rowheader" colspan="4" scope="rowgroup">{title}'
        f"</th></tr>\n{''.join(_check(report, name) for name in members)}</tbody>\n"
        for title, members in groups.items()
        if members
    )
    return _section(
        "What was checked",
        "<p>By readers apart from the job, while faults happened and afterwards, against the same job undisturbed."
        f"{told}</p>\n"
        f'<table class="checks" role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>\n{body}</table>',
    )


def _check(report: Report, name: str) -> str:
    outcome = report.check(name)
    number = "" if name in ABOUT_THE_TRIALS else f"{report.verdict.count(name):,}"
    return (
        f'<tr role="row"><th role="rowheader" scope="row">{name}</th>'
        f'<td role="cell" class="sign {_CLASSES[outcome]}">{_SIGNS[outcome]} {report.result(name)}</td>'
        f'<td role="cell" class="number">{number}</td>'
        f'<td role="cell">{MEANINGS[name]}{_why_unknown(report, name)}</td></tr>\n'
    )


def _recovery(report: Report) -> str:
    took = report.recovery
    if took is None:
        return ""
    told = ", ".join(f"{name} <b>{seconds:.1f} s</b>" for name, seconds in took.items())
    marks = {name: took[name] for name in ("p50", "p99")}
    return _section(
        "How long it took to recover",
        f"<p>From a fault to the first new row that a reader saw, starts of drivers included: {told}.</p>\n"
        f"{draw_histogram(report.verdict.recoveries_seconds, marks)}",
    )


def _failures(report: Report) -> str:
    failures = report.other_failures()
    if not failures:
        return ""
    number = len(report.verdict.of(Outcome.BROKEN)) + len(report.verdict.of(Outcome.UNKNOWN))
    items = "".join(
        f'<li><p><span class="sign {_CLASSES[trial.outcome]}">{_SIGNS[trial.outcome]} {trial.outcome.value}</span>'
        f" seed {trial.seed}, trial {trial.number}: {_shown(trial.reason)}</p>\n"
        f"<p><small>due: {_shown(', '.join(f'{kind} at {point}' for kind, point in trial.due))}</small></p>\n"
        f"{_command(replay)}</li>\n"
        for trial, replay in failures
    )
    more = f"<p>The first {FAILURES_MAX} of {number:,}.</p>\n" if number > FAILURES_MAX else ""
    which = "Trials" if report.verdict.counterexample is None else "Other trials"
    return _section(f"{which} that do not hold", f"{more}<ol>\n{items}</ol>")


# -- how --------------------------------------------------------------------------------------------------------------


def _method(report: Report) -> str:
    trials = len(report.verdict.trials)
    took = f" All {trials:,} trials took {_duration(report.seconds)}." if trials > 1 else ""
    workload = _shown(report.verdict.settings.workload)
    steps = (
        f"An undisturbed run gave the answer, if the job has one. Events: {workload}.",
        f"In each trial the job ran over the same events, in topics of its own, while faults struck.{took}",
        "The seed dealt the faults out, so that each one at each point is as frequent as every other one.",
        "One reader of committed records read along, one read all again in the end, one read whatever was written.",
        "Checkers that share no code with the job held what was read against the answer.",
        "What could not be judged counts as unknown, never as holding.",
    )
    items = "".join(f"<li>{step}</li>\n" for step in steps)
    return _section(
        "How it was done",
        f'<ol class="steps">\n{items}</ol>\n<p>The command that does all of it again:</p>\n{_command(report.command)}',
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _facts(report: Report) -> str:
    settings = report.verdict.settings
    job = {
        "job": settings.job,
        "file": settings.file,
        "digest of its code": settings.job_digest,
        "declared guarantee": settings.guarantee.label,
        "seeds": ", ".join(map(str, report.seeds)) or "none",
    }
    groups = {"Job": job, "Versions": settings.versions, "Machine": report.machine}
    lists = "".join(f"<div><h3>{name}</h3><dl>\n{_terms(facts)}</dl></div>\n" for name, facts in groups.items())
    return _section("On what", f'<div class="facts">{lists}</div>')


def _terms(facts: Mapping[str, str]) -> str:
    return "".join(f"<div><dt>{_shown(name)}</dt><dd>{_shown(text)}</dd></div>\n" for name, text in facts.items())


_LIGHT = (
    "--paper:#f7f8f9;--card:#fff;--ink:#18202b;--quiet:#56616e;--line:#d8dde3;--empty:#eceff2;--bar:#6d9dc5;"
    "--good:17,110,72;--bad:186,32,32;--open:138,88,0;--loose:84,96,110;"
    "--event:#1f62a5;--driver:#6048b0;--fault:#ba2020;--epoch:#116e48;--reader:#8a5800"
)
_DARK = (
    "--paper:#12161b;--card:#1a2027;--ink:#edf1f5;--quiet:#a5b0bc;--line:#323b45;--empty:#1e252d;--bar:#4f86b3;"
    "--good:78,196,142;--bad:250,122,122;--open:232,180,72;--loose:165,176,188;"
    "--event:#7db5ec;--driver:#b3a5f5;--fault:#fa7a7a;--epoch:#4ec48e;--reader:#e8b448"
)
_STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;-webkit-text-size-adjust:100%;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}}
main{{max-width:1120px;margin:0 auto;padding:2rem 1.2rem 3rem}}
.holds{{--mood:var(--good)}}.broken{{--mood:var(--bad)}}.unknown{{--mood:var(--open)}}.allowed{{--mood:var(--loose)}}
h1{{margin:.7rem 0 .9rem;font-size:1.3rem;line-height:1.4;font-weight:600;max-width:46em;text-wrap:pretty}}
h2{{margin:0 0 .5rem;font-size:1.2rem}}h3{{margin:0 0 .4rem;font-size:.95rem}}
p{{margin:.4rem 0;max-width:62em}}
small{{color:var(--quiet);font-weight:400}}
section{{margin-top:2.6rem}}
.verdict{{background:linear-gradient(rgba(var(--mood),.1),rgba(var(--mood),.04)),var(--card);
border:1px solid rgba(var(--mood),.45);border-top:8px solid rgb(var(--mood));
border-radius:10px;padding:1.3rem 1.7rem 1.1rem;
overflow-wrap:anywhere}}
.verdict p{{color:var(--quiet)}}.verdict .what{{margin:0}}.verdict .what b{{color:var(--ink)}}
.verdict .word{{display:flex;align-items:center;gap:.9rem;margin:.7rem 0 0;font-size:3.2rem;line-height:1.1;
font-weight:750;letter-spacing:-.01em;color:rgb(var(--mood))}}
.word span{{display:grid;place-items:center;width:1.25em;height:1.25em;border-radius:50%;background:rgb(var(--mood));
color:var(--card);font-size:.85em}}
.cards{{display:grid;grid-template-columns:repeat(5,1fr);gap:.7rem;margin-top:.9rem}}
.card{{background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:.75rem 1rem .65rem;line-height:1.35}}
.card b{{display:block;font-size:1.75rem;line-height:1.2;font-variant-numeric:tabular-nums}}
.card span{{font-size:.92rem}}.card small{{display:block;font-size:.8rem}}
.card.holds b,.card.broken b,.card.unknown b{{color:rgb(var(--mood))}}
.card.broken,.card.unknown{{border-color:rgb(var(--mood))}}
table{{border-collapse:collapse;font-size:.9rem}}
th,td{{padding:.42rem .6rem;text-align:left;vertical-align:top}}
thead th{{color:var(--quiet);font-weight:600}}
.number{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
.sign{{color:rgb(var(--mood));font-weight:600;white-space:nowrap}}
.wide{{overflow-x:auto}}
.map{{border-collapse:separate;border-spacing:2px;font-size:.8rem;margin-left:-2px}}
.map th,.map td{{padding:.12rem .25rem}}
.map tbody th{{position:sticky;left:0;background:var(--paper);white-space:nowrap;vertical-align:middle;
padding-right:.7rem;
font-weight:600}}
.map thead th{{vertical-align:bottom;font-size:.75rem}}
.map thead th[colspan]{{text-align:center;font-weight:600;border-bottom:2px solid var(--line)}}
.map thead th[colspan]:empty{{border:0}}
.map thead span{{writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap;font-weight:600;color:var(--ink)}}
.map tbody td{{min-width:2.45rem;height:1.75rem;text-align:center;vertical-align:middle;
border-radius:4px;line-height:1.15;
background:var(--empty);font-variant-numeric:tabular-nums;white-space:nowrap}}
.map tbody td[title]{{background:rgba(var(--mood),.26)}}
.map tbody td.broken{{background:rgb(var(--mood));color:var(--card)}}
.map tbody td.unknown{{box-shadow:inset 0 0 0 2px rgb(var(--mood))}}
.map b{{font-weight:600}}.map small{{display:block;color:inherit;font-size:.7rem}}
.map .edge{{border-left:6px solid var(--paper);border-radius:10px 4px 4px 10px/4px}}
.map tbody td.sum{{background:none;text-align:right;font-weight:600;padding-left:.6rem}}
.key{{list-style:none;margin:.5rem 0;padding:0;font-size:.85rem;color:var(--quiet)}}
.key li{{display:inline-block;margin:.15rem 1rem .15rem 0}}
.key span{{padding:.1rem .45rem;border-radius:4px;background:rgba(var(--mood),.2);color:var(--ink);white-space:nowrap}}
.key span.broken{{background:rgb(var(--mood));color:var(--card)}}
.key span.unknown{{box-shadow:inset 0 0 0 2px rgb(var(--mood))}}
dl{{margin:0}}dd{{margin:0;overflow-wrap:anywhere}}
.passages{{columns:2;column-gap:2.5rem;margin-top:.9rem;font-size:.82rem;line-height:1.4}}
.passages div{{break-inside:avoid;padding:.12rem 0}}
.passages dt{{display:inline;font-weight:600;font-size:.95em}}
.passages dd{{display:inline;color:var(--quiet);margin-left:.4em}}
.skipped div{{display:grid;grid-template-columns:11rem 1fr;gap:.2rem 1rem;padding:.4rem 0;
border-top:1px solid var(--line)}}
.skipped dt{{font-weight:600}}
.checks{{width:100%}}.checks tr>*{{border-top:1px solid var(--line)}}.checks thead tr>*{{border:0}}
.checks th{{white-space:nowrap}}
.checks .group th{{white-space:normal;padding-top:1rem;border:0;color:var(--quiet);font-size:.82rem}}
.reason{{overflow-wrap:anywhere}}
.line{{width:100%;margin:.8rem 0;background:var(--card);border:1px solid var(--line);border-radius:8px;
border-collapse:separate;border-spacing:0;overflow:hidden}}
.line caption{{text-align:left;padding-bottom:.4rem;color:var(--quiet);font-size:.85rem}}
.line thead th:nth-child(-n+2){{text-align:right}}
.line td.gap{{color:var(--quiet)}}
.line .event{{--lane:var(--event)}}.line .driver{{--lane:var(--driver)}}.line .fault{{--lane:var(--fault)}}
.line .epoch{{--lane:var(--epoch)}}.line .reader{{--lane:var(--reader)}}
.line td.lane{{position:relative;padding-left:1.2rem;color:var(--lane);font-weight:600;white-space:nowrap}}
.line td.lane::before{{content:"";position:absolute;left:1.72rem;top:0;bottom:0;border-left:2px solid var(--line)}}
.line tbody tr:first-child td.lane::before{{top:50%}}.line tbody tr:last-child td.lane::before{{bottom:50%}}
.line i{{position:relative;display:inline-grid;place-items:center;width:1.2rem;margin-right:.6rem;font-style:normal;
background:var(--card)}}
.line td.text{{width:100%;overflow-wrap:anywhere}}
.line tr.fault td{{background:rgba(var(--bad),.1)}}
.line tr.fault td.text{{font-weight:600}}.line tr.fault i{{background:none}}
pre{{margin:.4rem 0;padding:.7rem .9rem;background:var(--card);border:1px solid var(--line);border-radius:8px;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:.86rem;user-select:all;-webkit-user-select:all}}
pre,.map thead span,.passages dt{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
li{{margin:.45rem 0;overflow-wrap:anywhere}}ol{{padding-left:1.5rem;margin:.5rem 0}}.steps{{max-width:62em}}
.facts{{display:grid;grid-template-columns:repeat(3,1fr);gap:1rem}}
.facts>div{{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.9rem 1.1rem}}
.facts dl div{{display:flex;justify-content:space-between;gap:1rem;padding:.16rem 0;font-size:.88rem}}
.facts dt{{color:var(--quiet);flex:none}}.facts dd{{text-align:right}}
svg{{display:block;width:640px;max-width:100%;height:auto}}
svg text{{fill:var(--ink);font-size:13px}}svg .small{{font-size:12px;fill:var(--quiet)}}
.middle{{text-anchor:middle}}.end{{text-anchor:end}}.start{{text-anchor:start}}
.bar{{fill:var(--bar)}}
svg .count{{paint-order:stroke;stroke:var(--paper);stroke-width:4px}}
.axis{{stroke:var(--line)}}.mark{{stroke:var(--ink);stroke-dasharray:3 3}}
@media screen and (max-width:760px){{
main{{padding:1rem .8rem 2rem}}
.verdict{{padding:1rem 1.1rem .8rem}}.verdict .word{{font-size:2.5rem}}h1{{font-size:1.12rem}}
.cards{{grid-template-columns:repeat(2,1fr);gap:.5rem}}.card{{padding:.6rem .8rem}}.card b{{font-size:1.45rem}}
.facts{{grid-template-columns:1fr}}.passages{{columns:1}}
.skipped div{{grid-template-columns:1fr;gap:0}}
.wide{{overflow:visible}}.map,.map tbody{{display:block;margin:0}}.map thead{{display:none}}
.map tbody tr{{display:flex;flex-wrap:wrap;gap:.3rem;padding:.5rem 0;border-top:1px solid var(--line)}}
.map tbody th{{position:static;order:-2;padding:0;font-size:.95rem}}
.map tbody td{{display:none}}
.map tbody td[title]{{display:flex;align-items:center;gap:.35rem;border:0;
border-radius:4px;height:auto;padding:.18rem .5rem;font-size:.8rem}}
.map tbody td[title]::before{{content:attr(data-point)}}
.map tbody td.sum{{display:block;order:-1;flex:1 0 60%;border:0;height:auto;padding:0;font-size:.95rem}}
.key li{{display:block;margin:.4rem 0}}
.checks,.checks tbody{{display:block}}.checks thead{{display:none}}
.checks tr{{display:grid;grid-template-columns:1fr auto 3.5rem;padding:.4rem 0;border-top:1px solid var(--line)}}
.checks tr>*{{border:0;padding:0}}.checks td:last-child{{grid-column:1/-1;color:var(--quiet)}}
.checks .group{{border:0;padding-bottom:.1rem}}.checks .group th{{grid-column:1/-1}}
.line,.line tbody{{display:block}}.line thead,.line td.gap{{display:none}}
.line caption{{display:block;padding:.5rem .7rem 0}}
.line tr{{display:grid;grid-template-columns:1fr auto;padding:.35rem .7rem}}
.line td{{padding:0}}.line td.lane{{order:-1;padding:0}}.line td.lane::before{{display:none}}
.line td.text{{grid-column:1/-1;padding-left:1.8rem}}
.line tr.fault{{background:rgba(var(--bad),.1)}}.line tr.fault td{{background:none}}.line i{{background:none}}
svg text,svg .small{{font-size:20px}}svg .count{{display:none}}
}}
@media print{{
:root{{color-scheme:light;{_LIGHT};--paper:#fff}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
html{{font-size:11px}}
main{{max-width:none;padding:0 1px}}.wide{{overflow:visible}}section{{margin-top:1.8rem}}
.map{{width:100%;font-size:.78rem;border-spacing:1px}}.map th,.map td{{padding:.05rem .1rem}}
.map tbody td{{min-width:0;height:1.9rem;line-height:1;border-radius:2px}}.map small{{font-size:.62rem}}
.map tbody th{{padding-right:.3rem}}.map tbody td.edge{{border-left-width:3px;border-radius:5px 2px 2px 5px/2px}}
tr,svg,pre,p,li,.card,.verdict,.facts>div{{break-inside:avoid}}h2,h3,h2+p,.group{{break-after:avoid}}
}}
"""
