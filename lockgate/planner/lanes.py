"""Channel routing: give every line between two layers a lane of its own, so that it touches no other line.

A lane runs across, and a line turns into it and out of it. Lines may cross, and never share a stretch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise


@dataclass(frozen=True)
class _Run:
    """The stretch across of one line between two layers. It is entered at `entry` and left at each of `exits`.

    A run is `whole`, or one half of a line that had to be cut in two: the "first" half, or the "second".
    """

    net: int
    entry: int
    exits: tuple[int, ...]
    role: str = "whole"

    @property
    def low(self) -> int:
        return min(self.entry, *self.exits)

    @property
    def high(self) -> int:
        return max(self.entry, *self.exits)


@dataclass
class Channel:
    """The lanes between two layers: which lane every run got, and which lines were cut in two."""

    lane_of: dict[tuple[int, str], int] = field(default_factory=dict)
    cut_at: dict[int, int] = field(default_factory=dict)

    @property
    def lane_count(self) -> int:
        return max(self.lane_of.values(), default=-1) + 1


def route_channel(nets: Mapping[int, tuple[int, tuple[int, ...]]], clearance: int) -> Channel:
    """Give every line between two layers its own lane if it would touch another line.

    If one line leaves its box at the height at which another enters a box, the first must turn off before the second
    turns in. Such rules can form a circle (two lines that swap heights). Then one line is cut in two halves, joined at
    a height that no other line uses. If every line is cut, all first halves can go before all second ones, so this
    ends.
    """
    channel = Channel()
    bent = {net: ends for net, ends in nets.items() if set(ends[1]) != {ends[0]}}
    taken = {height for entry, exits in nets.values() for height in (entry, *exits)}

    def goes_before(first: _Run, second: _Run) -> bool:
        if first.net == second.net:
            return first.role == "first"
        if first.role == "second" or second.role == "first":
            return False
        return any(abs(first.entry - exit_) < clearance for exit_ in second.exits)

    while True:
        ordered, stuck = _in_order(_runs_of(bent, channel.cut_at), goes_before)
        if not stuck:
            break
        victim = next(run for run in _on_a_circle(stuck, goes_before) if run.role == "whole")
        height = _free_height((victim.low + victim.high) // 2, taken, clearance)
        taken.add(height)
        channel.cut_at[victim.net] = height

    _swap_crossing_runs(ordered, goes_before)
    for index, run in enumerate(ordered):
        earlier = [
            channel.lane_of[other.net, other.role]
            for other in ordered[:index]
            if other.low < run.high + clearance and run.low < other.high + clearance
        ]
        channel.lane_of[run.net, run.role] = max(earlier, default=-1) + 1
    return channel


def _runs_of(nets: Mapping[int, tuple[int, tuple[int, ...]]], cut_at: Mapping[int, int]) -> list[_Run]:
    runs = []
    for net, (entry, exits) in nets.items():
        if net in cut_at:
            runs += [_Run(net, entry, (cut_at[net],), "first"), _Run(net, cut_at[net], exits, "second")]
        else:
            runs.append(_Run(net, entry, exits))
    # Of lines that go down the lowest turns first, of lines that go up the highest: so they nest and do not cross.
    return sorted(runs, key=lambda run: -run.entry if sum(run.exits) > run.entry * len(run.exits) else run.entry)


def _in_order(runs: list[_Run], goes_before: Callable[[_Run, _Run], bool]) -> tuple[list[_Run], list[_Run]]:
    """The runs in an order that the rules allow, and those that they leave in circles."""
    ordered, waiting = list[_Run](), list(runs)
    while waiting:
        free = (run for run in waiting if not any(goes_before(other, run) for other in waiting if other is not run))
        ready = next(free, None)
        if ready is None:
            break
        ordered.append(ready)
        waiting.remove(ready)
    return ordered, waiting


def _on_a_circle(runs: list[_Run], goes_before: Callable[[_Run, _Run], bool]) -> list[_Run]:
    """Walk back from run to run that must go before it until one comes again; the walk since then is a circle."""
    walk = [runs[0]]
    while True:
        before = next(run for run in runs if run is not walk[-1] and goes_before(run, walk[-1]))
        if before in walk:
            return walk[walk.index(before) :]
        walk.append(before)


def _free_height(preferred: int, taken: set[int], clearance: int) -> int:
    heights = (height for distance in count() for height in (preferred - distance, preferred + distance))
    return next(height for height in heights if all(abs(height - other) >= clearance for other in taken))


def _swap_crossing_runs(ordered: list[_Run], goes_before: Callable[[_Run, _Run], bool]) -> None:
    def crossings(first: _Run, second: _Run) -> int:
        over_entry = first.low < second.entry < first.high
        return over_entry + sum(second.low < exit_ < second.high for exit_ in first.exits)

    for _ in ordered:
        swapped = False
        for index, (first, second) in enumerate(pairwise(list(ordered))):
            if ordered[index] is not first:
                continue  # moved by the swap just before; the next round looks again
            if not goes_before(first, second) and crossings(second, first) < crossings(first, second):
                ordered[index], ordered[index + 1] = second, first
                swapped = True
        if not swapped:
            return
