"""A directed acyclic graph to be drawn for people: boxes, arrows, and the words in them.

A picture says what is connected, not where it stands. `layout` finds the places, `drawing` writes them as text for a
terminal, `svg` as a page; each imports only what comes before it here. Only a graph whose events flow one way can be
drawn. `flow_order` refuses all others, so no drawing silently omits a box or an arrow.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from lockgate.errors import BadJob


@dataclass(frozen=True)
class Box:
    """One part of a graph; `kind` is "source", "step", "state" or "sink" and decides how it is drawn."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "step"


@dataclass(frozen=True)
class Arrow:
    """Events flow from the box `source` to the box `target`; the label says how."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True)
class Picture:
    """A graph and its title; the order of boxes and arrows is kept if the drawing has a choice."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def flow_order(picture: Picture) -> list[str]:
    """Box ids, each after everything that flows into it; refuses what is no graph."""
    where = f"picture {picture.title!r}"
    known = Counter(box.id for box in picture.boxes)
    for name, count in known.items():
        if count > 1:
            raise BadJob(f"{count} boxes are called {name!r}.", where, "give every box an id of its own")
    targets: dict[str, list[str]] = defaultdict(list)
    for arrow in picture.arrows:
        for end in (arrow.source, arrow.target):
            if end not in known:
                raise BadJob(
                    f"An arrow goes from {arrow.source!r} to {arrow.target!r}, but no box is called {end!r}.",
                    where,
                    "add the box or remove the arrow",
                )
        targets[arrow.source].append(arrow.target)
    waiting = Counter(arrow.target for arrow in picture.arrows)
    order = [box.id for box in picture.boxes if not waiting[box.id]]
    for name in order:  # grows while it is read
        for target in targets[name]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    if len(order) < len(picture.boxes):
        raise BadJob("The arrows form a circle.", where, "draw graphs whose events flow one way only")
    return order


def printable(text: str) -> str:
    """The text without characters that would break a line, a terminal or an XML document."""
    kept = []
    for char in text:
        category = unicodedata.category(char)
        if category in ("Cc", "Zl", "Zp"):
            kept.append(" ")
        elif category in ("Cs", "Cn", "Co"):
            kept.append("\N{REPLACEMENT CHARACTER}")
        elif category != "Cf":
            kept.append(char)
    return "".join(kept).strip()


def cut(text: str, room: int, measure: Callable[[str], int]) -> str:
    """The text, its end replaced by an ellipsis if it measures more than `room`."""
    if measure(text) <= room:
        return text
    while text and measure(text + "…") > room:
        text = text[:-1]
    return text.rstrip() + "…"
