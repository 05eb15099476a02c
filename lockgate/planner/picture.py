"""Draw a directed acyclic graph for people: as text for a terminal, as a stand-alone SVG for a page.

The rule: a line can be followed with a finger. Who starts at a box and follows its line ends at exactly the boxes that
its arrows name, so a plan is never read as saying more, or less, than it does. Four habits keep the rule:

    one line leaves a box, however many arrows it has; it forks on the way     ├ ┬ ┴ ┼ are forks
    every arrow enters its target at a place of its own; lines never flow together
    a line that must cross another passes under it, without touching           ─│─ is a crossing
    a line that passes a layer has a lane of its own there, so it never runs through a box

Both drawings come from one layout, which knows only "along" (the way the events flow) and "across", in whole units: the
columns and rows of a terminal, or pixels. It works in five steps: layers by longest path, order within a layer by
barycenter, places by weighted median, lanes between layers by channel routing, then the lines themselves. Nothing here
reads a clock, a hash order or a terminal: the same picture gives the same drawing.
"""

import unicodedata
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape

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
    """A graph and its title; the order of boxes and arrows is kept where the drawing leaves a choice."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def draw_text(picture: Picture, width: int = 100) -> str:
    """Draw with box characters: left to right if that fits `width` (at least 40), else top to bottom.

    >>> print(draw_text(Picture("", (Box("a", "in", kind="source"), Box("b", "out")), (Arrow("a", "b"),))))
    ╭────╮    ┌─────┐
    │ in ├───▶│ out │
    ╰────╯    └─────┘
    """
    _refuse_what_is_no_graph(picture)
    width = max(width, 40)
    heading = [_cut(_printable(picture.title), width, _cells), ""] if picture.title.strip() else []
    return "\n".join(heading + _text_drawing(picture, width)).rstrip()


def draw_svg(pictures: Sequence[Picture], footer: Sequence[str] = ()) -> str:
    """Draw all pictures, one below the other, and then the footer lines, as one SVG document.

    The first footer line is set stronger than the rest: it is meant for the guarantee, the others for its reasons.
    """
    for picture in pictures:
        _refuse_what_is_no_graph(picture)
    return _svg_document([_SvgDrawing.of(picture) for picture in pictures], pictures, footer)


def _refuse_what_is_no_graph(picture: Picture) -> None:
    known = Counter(box.id for box in picture.boxes)
    where = f"picture {picture.title!r}"
    for name, count in known.items():
        if count > 1:
            raise BadJob(f"{count} boxes are called {name!r}.", where, "give every box an id of its own")
    for arrow in picture.arrows:
        for end in (arrow.source, arrow.target):
            if end not in known:
                raise BadJob(
                    f"An arrow goes from {arrow.source!r} to {arrow.target!r}, but no box is called {end!r}.",
                    where,
                    "add the box or remove the arrow",
                )
    if len(_topological(picture)) < len(picture.boxes):
        raise BadJob("The arrows form a circle.", where, "draw graphs whose events flow one way only")


def _topological(picture: Picture) -> list[str]:
    """Box ids, each after everything that flows into it; boxes on or behind a circle are missing."""
    waiting = Counter(arrow.target for arrow in picture.arrows)
    targets: dict[str, list[str]] = defaultdict(list)
    for arrow in picture.arrows:
        targets[arrow.source].append(arrow.target)
    order = [box.id for box in picture.boxes if not waiting[box.id]]
    for name in order:  # grows while it is read
        for target in targets[name]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    return order


# ---------------------------------------------------------------------------------------------------------------------
# The layout: where everything goes, in units that only the two drawings below give a meaning
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape:
    """The room a box needs. Offsets run across, from the start of the box."""

    along: int
    across: int
    inlets: tuple[int, ...]
    outlet: int
    overhang: int = 0  # room across, behind the end of the box, for the label of its last inlet


@dataclass(frozen=True)
class _Spacing:
    box_gap: int  # across, between two boxes
    lane_gap: int  # across, between a passing line and its neighbour
    part_gap: int  # across, between parts of the graph that no arrow connects
    lead: int  # along, from a layer to the first lane
    pitch: int  # along, from lane to lane
    tail: int  # along, from the last lane (or the labels) to the next layer, arrow head included
    clearance: int  # lines of different boxes that come closer than this could be taken for one


@dataclass
class _Node:
    """A box in its layer, or (`box` is None) the place where the line of `origin` passes a layer."""

    layer: int
    origin: str
    box: str | None
    shape: _Shape
    part: int
    place: int = 0  # across


@dataclass(frozen=True)
class _Link:
    """A piece of line from one layer to the next; `arrow` is set where it enters a box."""

    left: int
    right: int
    arrow: int | None


@dataclass(frozen=True)
class _Layout:
    along: int
    across: int
    boxes: Mapping[str, tuple[int, int, int, int]]  # id -> start along, start across, size along, size across
    routes: Sequence[Sequence[tuple[int, int]]]  # per arrow: corners (along, across), from box to box
    labels: Sequence[tuple[int, int]]  # per arrow: where its last straight stretch begins (along, across)


def _lay_out(
    picture: Picture,
    shapes: Mapping[str, _Shape],
    label_room: Sequence[int],
    spacing: _Spacing,
    boxes_per_layer: int | None = None,
    parts_in_a_row: bool = False,
    limit: int | None = None,
) -> _Layout:
    """Lay a picture out. `label_room` is the room, along, that the label of each arrow needs.

    Three ways to make a drawing narrower across: at most `boxes_per_layer`, unconnected parts one after the other, and
    a `limit` that bends lines which could be straight.
    """
    graph = _Graph(picture, shapes, boxes_per_layer, parts_in_a_row)
    offset = 0
    for part in range(graph.part_count):
        order = _order_layers(graph, graph.layers_of(part))
        inlets = _choose_inlets(graph, order)
        _place(graph, order, inlets, spacing, limit)
        nodes = [node for layer in order for node in layer]
        low = min(graph.nodes[node].place for node in nodes)
        for node in nodes:
            graph.nodes[node].place += offset - low
        if not parts_in_a_row:
            offset = max(map(graph.end_across, nodes)) + spacing.part_gap
    return _draw_lines(graph, _choose_inlets(graph, graph.layers_by_place()), label_room, spacing)


class _Graph:
    """The picture in layers: boxes by longest path, long arrows cut into links at every layer they pass."""

    def __init__(
        self,
        picture: Picture,
        shapes: Mapping[str, _Shape],
        boxes_per_layer: int | None,
        parts_in_a_row: bool,
    ) -> None:
        self.picture = picture
        part_of = _parts(picture)
        self.part_count = len(set(part_of.values()))
        layer_of = _layer_boxes(picture, part_of, boxes_per_layer, parts_in_a_row)
        self.layer_count = max(layer_of.values(), default=-1) + 1
        self.nodes: list[_Node] = []
        self.node_of: dict[str, int] = {}
        for box in picture.boxes:
            self.node_of[box.id] = len(self.nodes)
            self.nodes.append(_Node(layer_of[box.id], box.id, box.id, shapes[box.id], part_of[box.id]))
        self.links: list[_Link] = []
        self.path_of: list[list[_Link]] = []  # per arrow
        self._passing: dict[tuple[str, int], int] = {}
        for index, arrow in enumerate(picture.arrows):
            self.path_of.append(self._path(index, arrow))
        self.into: dict[int, list[_Link]] = defaultdict(list)
        self.out_of: dict[int, list[_Link]] = defaultdict(list)
        for link in self.links:
            self.out_of[link.left].append(link)
            self.into[link.right].append(link)

    def _path(self, index: int, arrow: Arrow) -> list[_Link]:
        path = []
        left = self.node_of[arrow.source]
        target = self.node_of[arrow.target]
        for layer in range(self.nodes[left].layer + 1, self.nodes[target].layer):
            # All arrows of a box share one lane: a fork is drawn as late as possible.
            key = (arrow.source, layer)
            if key not in self._passing:
                self._passing[key] = len(self.nodes)
                lane = _Shape(along=0, across=1, inlets=(0,), outlet=0)
                self.nodes.append(_Node(layer, arrow.source, None, lane, self.nodes[left].part))
                self.links.append(_Link(left, self._passing[key], None))
            path.append(_Link(left, self._passing[key], None))
            left = self._passing[key]
        self.links.append(_Link(left, target, index))
        return [*path, self.links[-1]]

    def layers_of(self, part: int) -> list[list[int]]:
        """The nodes of a part by layer, in the order in which a walk along the arrows meets them."""
        layers: list[list[int]] = [[] for _ in range(self.layer_count)]
        seen: set[int] = set()
        starts = [node for node in self.node_of.values() if not self.into[node] and self.nodes[node].part == part]
        stack = starts[::-1]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                layers[self.nodes[node].layer].append(node)
                stack.extend(link.right for link in reversed(self.out_of[node]))
        return layers

    def layers_by_place(self) -> list[list[int]]:
        layers: list[list[int]] = [[] for _ in range(self.layer_count)]
        for index in sorted(range(len(self.nodes)), key=lambda index: self.nodes[index].place):
            layers[self.nodes[index].layer].append(index)
        return layers

    def end_across(self, index: int) -> int:
        node = self.nodes[index]
        return node.place + node.shape.across + node.shape.overhang


def _parts(picture: Picture) -> dict[str, int]:
    """Number the connected parts of the graph, in the order of their first box."""
    near: dict[str, list[str]] = defaultdict(list)
    for arrow in picture.arrows:
        near[arrow.source].append(arrow.target)
        near[arrow.target].append(arrow.source)
    part_of: dict[str, int] = {}
    count = 0
    for box in picture.boxes:
        if box.id not in part_of:
            stack = [box.id]
            while stack:
                name = stack.pop()
                if name not in part_of:
                    part_of[name] = count
                    stack.extend(near[name])
            count += 1
    return part_of


def _layer_boxes(
    picture: Picture, part_of: Mapping[str, int], boxes_per_layer: int | None, parts_in_a_row: bool
) -> dict[str, int]:
    """Put every box one layer behind the last box that flows into it, later if that layer is full."""
    sources: dict[str, list[str]] = defaultdict(list)
    for arrow in picture.arrows:
        sources[arrow.target].append(arrow.source)
    used: Counter[int] = Counter()
    layer_of: dict[str, int] = {}
    order = _topological(picture)
    if parts_in_a_row:
        order.sort(key=part_of.__getitem__)
    first_layer, part = 0, 0
    for name in order:
        if parts_in_a_row and part_of[name] != part:
            part, first_layer = part_of[name], max(layer_of.values()) + 1
        layer = max([first_layer] + [layer_of[source] + 1 for source in sources[name]])
        while boxes_per_layer and used[layer] >= boxes_per_layer:
            layer += 1
        layer_of[name] = layer
        used[layer] += 1
    return layer_of


def _order_layers(graph: _Graph, layers: list[list[int]]) -> list[list[int]]:
    """Order every layer so that few lines cross: barycenter sweeps to and fro, then swaps of neighbours."""
    rights = {node: [link.right for link in graph.out_of[node]] for layer in layers for node in layer}
    lefts = {node: [link.left for link in graph.into[node]] for layer in layers for node in layer}
    best, best_count = [list(layer) for layer in layers], _count_crossings(layers, rights)
    for sweep in range(12):
        if not best_count:
            break
        forth = sweep % 2 == 0
        near = lefts if forth else rights
        for level in range(len(layers)) if forth else reversed(range(len(layers))):
            beside = level - 1 if forth else level + 1
            if 0 <= beside < len(layers):
                rank = {node: index for index, node in enumerate(layers[beside])}
                own = {node: float(index) for index, node in enumerate(layers[level])}
                layers[level].sort(
                    key=lambda node, near=near, rank=rank, own=own: (  # type: ignore[misc]
                        sum(rank[other] for other in near[node]) / len(near[node]) if near[node] else own[node]
                    )
                )
        _swap_neighbours(layers, lefts, rights)
        count = _count_crossings(layers, rights)
        if count < best_count:
            best, best_count = [list(layer) for layer in layers], count
    return best


def _count_crossings(layers: list[list[int]], rights: Mapping[int, list[int]]) -> int:
    count = 0
    for layer, following in pairwise(layers):
        rank = {node: index for index, node in enumerate(following)}
        seen: list[int] = []
        for node in layer:
            ends = sorted(rank[right] for right in rights[node])
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _swap_neighbours(layers: list[list[int]], lefts: Mapping[int, list[int]], rights: Mapping[int, list[int]]) -> None:
    rank = {node: index for layer in layers for index, node in enumerate(layer)}

    def crossings(first: int, second: int) -> int:
        return sum(rank[a] > rank[b] for near in (lefts, rights) for a in near[first] for b in near[second])

    for layer in layers:
        for index in range(len(layer) - 1):
            first, second = layer[index], layer[index + 1]
            if crossings(second, first) < crossings(first, second):
                layer[index], layer[index + 1] = second, first
                rank[first], rank[second] = index + 1, index


def _choose_inlets(graph: _Graph, order: list[list[int]]) -> dict[_Link, int]:
    """Give every arrow an inlet of its target, in the order of what comes before, so that they do not cross."""
    rank = {node: index for layer in order for index, node in enumerate(layer)}
    inlet: dict[_Link, int] = {}
    for node in rank:
        incoming = sorted(graph.into[node], key=lambda link: (rank[link.left], link.arrow or 0))
        inlet.update(zip(incoming, graph.nodes[node].shape.inlets, strict=True))
    return inlet


def _place(
    graph: _Graph, order: list[list[int]], inlets: Mapping[_Link, int], spacing: _Spacing, limit: int | None
) -> None:
    """Place the nodes of one part across, keeping their order, so that lines run as straight as they can."""
    nodes = graph.nodes

    def bend(link: _Link) -> int:
        left = nodes[link.left]
        return left.place + left.shape.outlet - nodes[link.right].place - inlets[link]

    def weight(link: _Link) -> int:
        # A long line with a kink in the middle of nowhere is the first thing the eye catches.
        return (1, 3, 9)[(nodes[link.left].box is None) + (nodes[link.right].box is None)]

    def room(first: int, second: int) -> int:
        lanes = nodes[first].box is None or nodes[second].box is None
        shape = nodes[first].shape
        return shape.across + shape.overhang + (spacing.lane_gap if lanes else spacing.box_gap)

    def settle(layer: list[int], look_back: bool, look_ahead: bool) -> None:
        # Isotonic regression: neighbours that want the same place form a block, and the block moves as one. By median
        # and not by mean, because a line is either straight or it is not.
        blocks: list[tuple[list[int], list[tuple[int, int]]]] = []
        starts = dict.fromkeys(layer[:1], 0)
        for first, second in pairwise(layer):
            starts[second] = starts[first] + room(first, second)
        for node, start in starts.items():
            wishes = []
            if look_back:
                wishes += [(nodes[node].place + bend(link), weight(link)) for link in graph.into[node]]
            if look_ahead:
                wishes += [(nodes[node].place - bend(link), weight(link)) for link in graph.out_of[node]]
            if wishes:
                wish, strength = _weighted_median(wishes), sum(weight for _, weight in wishes) * 8
            else:
                wish, strength = nodes[node].place, 1
            blocks.append(([node], [(wish - start, strength)]))
            while len(blocks) > 1 and _weighted_median(blocks[-2][1]) > _weighted_median(blocks[-1][1]):
                members, pulls = blocks.pop()
                blocks[-1] = (blocks[-1][0] + members, blocks[-1][1] + pulls)
        for members, pulls in blocks:
            base = _weighted_median(pulls)
            for node in members:
                nodes[node].place = base + starts[node]

    members = [node for layer in order for node in layer]
    links = [link for node in members for link in graph.out_of[node]]

    def cost(links: Sequence[_Link]) -> tuple[int, int]:
        bends = [(abs(bend(link)), weight(link)) for link in links]
        return sum(size * weight for size, weight in bends), sum(size * size for size, _ in bends)

    for layer in order:
        settle(layer, look_back=True, look_ahead=False)
    best: tuple[tuple[int, int], list[int]] | None = None
    views = [(False, True), (True, False)] * 3 + [(True, True)] * 4
    for round_, (look_back, look_ahead) in enumerate(views):
        forth = look_back and (not look_ahead or round_ % 2 == 0)
        for layer in order if forth else reversed(order):
            settle(layer, look_back, look_ahead)
        if best is None or cost(links) < best[0]:
            best = (cost(links), [nodes[node].place for node in members])
    if best:
        for node, place in zip(members, best[1], strict=True):
            nodes[node].place = place

    # What is left are lines bent because a whole region stands a little off: straighten them one by one, moving along
    # whatever hangs on a straight line or stands in the way.
    beside = {}
    for layer in order:
        for first, second in pairwise(layer):
            beside[first, 1], beside[second, -1] = second, first

    def dragged(node: int, by: int) -> set[int]:
        moving: set[int] = set()
        stack = [node]
        while stack:
            node = stack.pop()
            if node in moving:
                continue
            moving.add(node)
            stack += [link.left for link in graph.into[node] if not bend(link)]
            stack += [link.right for link in graph.out_of[node] if not bend(link)]
            blocked = beside.get((node, 1 if by > 0 else -1))
            if blocked is not None:
                first, second = (node, blocked) if by > 0 else (blocked, node)
                if nodes[second].place - nodes[first].place - room(first, second) < abs(by):
                    stack.append(blocked)
        return moving

    for _ in range(4):
        improved = False
        for link in links:
            for node, by in ((link.right, bend(link)), (link.left, -bend(link))):
                if not by:
                    continue
                moving = dragged(node, by)
                touched = [link for node in moving for link in graph.out_of[node]]
                touched += [link for node in moving for link in graph.into[node] if link.left not in moving]
                before = cost(touched)
                for other in moving:
                    nodes[other].place += by
                if cost(touched) < before:
                    improved = True
                else:
                    for other in moving:
                        nodes[other].place -= by
        if not improved:
            break

    if limit is not None:
        low = min(nodes[node].place for node in members)
        for layer in order:
            for index, node in reversed(list(enumerate(layer))):
                if index + 1 < len(layer):
                    latest = nodes[layer[index + 1]].place - room(node, layer[index + 1])
                else:
                    latest = low + limit - nodes[node].shape.across - nodes[node].shape.overhang
                nodes[node].place = min(nodes[node].place, latest)
            if layer:
                nodes[layer[0]].place = max(nodes[layer[0]].place, low)  # a layer that cannot fit stays too wide
            for first, second in pairwise(layer):
                nodes[second].place = max(nodes[second].place, nodes[first].place + room(first, second))


def _weighted_median(values: list[tuple[int, int]]) -> int:
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    reached = 0
    for index, (value, weight) in enumerate(ordered):
        reached += weight
        if reached == half and index + 1 < len(ordered):
            return (value + ordered[index + 1][0]) // 2
        if reached >= half:
            return value
    return 0


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
class _Channel:
    """The lanes between two layers: which lane every run got, and where lines were cut in two."""

    lane_of: dict[tuple[int, str], int] = field(default_factory=dict)
    cut_at: dict[int, int] = field(default_factory=dict)

    @property
    def lane_count(self) -> int:
        return max(self.lane_of.values(), default=-1) + 1


def _route_channel(nets: Mapping[int, tuple[int, tuple[int, ...]]], clearance: int) -> _Channel:
    """Give every line between two layers a lane of its own wherever it would touch another.

    Where one line leaves its box at the height at which another enters one, the first must turn off before the second
    turns in. Such rules can form a circle (two lines that swap heights): then one of them is cut in two halves, joined
    at a height that nobody else uses. With every line cut all first halves can go before all second ones, so this ends.
    """
    channel = _Channel()
    bent = {net: ends for net, ends in nets.items() if set(ends[1]) != {ends[0]}}
    taken = {height for entry, exits in nets.values() for height in (entry, *exits)}

    def goes_before(first: _Run, second: _Run) -> bool:
        if first.net == second.net:
            return first.role == "first"
        if first.role == "second" or second.role == "first":
            return False
        return any(abs(first.entry - exit_) < clearance for exit_ in second.exits)

    while True:
        runs = []
        for net, (entry, exits) in bent.items():
            if net in channel.cut_at:
                runs.append(_Run(net, entry, (channel.cut_at[net],), "first"))
                runs.append(_Run(net, channel.cut_at[net], exits, "second"))
            else:
                runs.append(_Run(net, entry, exits))
        # Of lines that go down the lowest turns first, of lines that go up the highest: so they nest and do not cross.
        runs.sort(key=lambda run: -run.entry if sum(run.exits) > run.entry * len(run.exits) else run.entry)
        ordered: list[_Run] = []
        while runs:
            ready = [run for run in runs if not any(goes_before(other, run) for other in runs if other is not run)]
            if not ready:
                break
            ordered.append(ready[0])
            runs.remove(ready[0])
        if not runs:
            break
        victim = next(run for run in _on_a_circle(runs, goes_before) if run.role == "whole")
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


def _on_a_circle(runs: list[_Run], goes_before: Callable[[_Run, _Run], bool]) -> list[_Run]:
    """Walk back from run to run that must go before it until one comes again; the walk since then is a circle."""
    walk = [runs[0]]
    while True:
        before = next(run for run in runs if run is not walk[-1] and goes_before(run, walk[-1]))
        if before in walk:
            return walk[walk.index(before) :]
        walk.append(before)


def _free_height(wish: int, taken: set[int], clearance: int) -> int:
    for distance in range(2 * clearance * (len(taken) + 1) + 1):
        for height in (wish - distance, wish + distance):
            if all(abs(height - other) >= clearance for other in taken):
                return height
    return max(taken) + clearance


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


def _draw_lines(graph: _Graph, inlets: Mapping[_Link, int], label_room: Sequence[int], spacing: _Spacing) -> _Layout:
    """Turn places and lanes into boxes and corners, with the lowest coordinate at 0."""
    nodes = graph.nodes
    nets: list[dict[int, tuple[int, tuple[int, ...]]]] = [{} for _ in range(graph.layer_count)]
    room_for_labels = [0] * graph.layer_count

    def entry(link: _Link) -> int:
        return nodes[link.left].place + nodes[link.left].shape.outlet

    def exit_(link: _Link) -> int:
        return nodes[link.right].place + inlets[link]

    for index, node in enumerate(nodes):
        out = graph.out_of[index]
        if out:
            nets[node.layer][index] = (entry(out[0]), tuple(sorted(map(exit_, out))))
        for link in out:
            if link.arrow is not None:
                room_for_labels[node.layer] = max(room_for_labels[node.layer], label_room[link.arrow])
    channels = [_route_channel(net, spacing.clearance) for net in nets]

    # Along: layer, lanes, labels, arrow heads, next layer.
    depth = [max(node.shape.along for node in nodes if node.layer == level) for level in range(graph.layer_count)]
    layer_at, lanes_at, labels_at = [0], [], []
    for level, channel in enumerate(channels):
        lanes_at.append(layer_at[-1] + depth[level] + spacing.lead)
        lanes = (channel.lane_count - 1) * spacing.pitch + 1 if channel.lane_count else 0
        labels_at.append(lanes_at[-1] + lanes)
        layer_at.append(labels_at[-1] + room_for_labels[level] + spacing.tail)

    routes: list[list[tuple[int, int]]] = []
    labels: list[tuple[int, int]] = []
    for path in graph.path_of:
        first = nodes[path[0].left]
        corners = [(layer_at[first.layer] + depth[first.layer], entry(path[0]))]
        for link in path:
            level = nodes[link.left].layer
            channel, start, end = channels[level], entry(link), exit_(link)
            cut = channel.cut_at.get(link.left)
            turns = [("whole", start, end)] if cut is None else [("first", start, cut), ("second", cut, end)]
            for role, low, high in turns:
                if low != high:
                    lane = lanes_at[level] + channel.lane_of[link.left, role] * spacing.pitch
                    corners += [(lane, low), (lane, high)]
        last = nodes[path[-1].right]
        routes.append([*corners, (layer_at[last.layer], exit_(path[-1]))])
        labels.append((labels_at[last.layer - 1], exit_(path[-1])))

    # A line cut in two may pass outside of everything else.
    low = min([node.place for node in nodes] + [across for route in routes for _, across in route], default=0)
    high = max(
        [graph.end_across(index) for index in range(len(nodes))]
        + [across + 1 for route in routes for _, across in route],
        default=0,
    )
    return _Layout(
        along=layer_at[-2] + depth[-1] if depth else 0,
        across=high - low,
        boxes={
            node.box: (layer_at[node.layer], node.place - low, depth[node.layer], node.shape.across)
            for node in nodes
            if node.box is not None
        },
        routes=[[(along, across - low) for along, across in route] for route in routes],
        labels=[(along, across - low) for along, across in labels],
    )


# ---------------------------------------------------------------------------------------------------------------------
# Words: what can be printed, how wide it is, where it is cut
# ---------------------------------------------------------------------------------------------------------------------


def _printable(text: str) -> str:
    """The text without what would break a line, a terminal or an XML document."""
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


def _cut(text: str, room: int, measure: Callable[[str], int]) -> str:
    if measure(text) <= room:
        return text
    while text and measure(text + "…") > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _cells(text: str) -> int:
    """How many columns of a terminal the text fills."""
    return sum(_char_cells(char) for char in text)


def _char_cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


# ---------------------------------------------------------------------------------------------------------------------
# The drawing as text
# ---------------------------------------------------------------------------------------------------------------------

_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_LINES = {
    _UP | _DOWN: "│",
    _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "┌",
    _DOWN | _LEFT: "┐",
    _UP | _RIGHT: "└",
    _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬",
    _UP | _LEFT | _RIGHT: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}

# Corners from the top left, clockwise, then level and upright border, then the outlet to the right and to below.
_BORDERS = {"source": "╭╮╯╰─│├┬", "sink": "╭╮╯╰─│├┬", "state": "╔╗╝╚═║╟╤"}
_PLAIN_BORDER = "┌┐┘└─│├┬"

_TEXT_LEVEL = _Spacing(box_gap=1, lane_gap=1, part_gap=1, lead=1, pitch=2, tail=3, clearance=1)
_TEXT_UPRIGHT = _Spacing(box_gap=2, lane_gap=2, part_gap=4, lead=1, pitch=1, tail=1, clearance=1)


def _text_drawing(picture: Picture, width: int) -> list[str]:
    """Try the drawings from the most to the least readable; take the first that fits, else the narrowest."""
    if not picture.boxes:
        return ["(nothing to draw)"]
    down = [(36, 24), (36, 14), (24, 14), (18, 10)]  # room for the text of boxes, for labels
    attempts = [_Attempt(True, *room) for room in ((40, 24), (28, 20), (22, 16))]
    attempts += [_Attempt(False, *room) for room in down]
    attempts += [_Attempt(False, *room, parts_in_a_row=True, limit=width) for room in down]
    for count in range(min(len(picture.boxes), 6), 0, -1):
        attempts += [_Attempt(False, *room, count, parts_in_a_row=True, limit=width) for room in down]
    attempts += [_Attempt(False, *room, 1, parts_in_a_row=True, limit=width) for room in ((12, 8), (8, 4))]
    narrowest: _TextDrawing | None = None
    for attempt in attempts:
        drawing = _TextDrawing(picture, attempt)
        if drawing.width <= width:
            return drawing.rows()
        if narrowest is None or drawing.width < narrowest.width:
            narrowest = drawing
    return narrowest.rows() if narrowest else []


@dataclass(frozen=True)
class _Attempt:
    """One way to draw: `level` flows to the right, otherwise down; longer text than there is room for is cut."""

    level: bool
    box_room: int
    label_room: int
    boxes_per_layer: int | None = None
    parts_in_a_row: bool = False
    limit: int | None = None


class _TextDrawing:
    def __init__(self, picture: Picture, attempt: _Attempt) -> None:
        self.picture, self.level = picture, attempt.level
        room, level = attempt.box_room, attempt.level
        self.labels = [_cut(_printable(arrow.label), attempt.label_room, _cells) for arrow in picture.arrows]
        self.title = {box.id: _cut(_printable(box.title), room, _cells) for box in picture.boxes}
        self.lines = {box.id: [_cut(_printable(line), room, _cells) for line in box.lines] for box in picture.boxes}
        incoming: dict[str, list[str]] = defaultdict(list)
        for arrow, label in zip(picture.arrows, self.labels, strict=True):
            incoming[arrow.target].append(label)
        self.layout = _lay_out(
            picture,
            {box.id: self._shape(box.id, incoming[box.id]) for box in picture.boxes},
            [(_cells(label) + 1 if level else 1) if label else 0 for label in self.labels],
            _TEXT_LEVEL if level else _TEXT_UPRIGHT,
            attempt.boxes_per_layer,
            attempt.parts_in_a_row,
            attempt.limit,
        )
        self.width = self.layout.along if level else self.layout.across

    def _shape(self, box: str, incoming: list[str]) -> _Shape:
        in_border = 2 * bool(self.lines[box])
        columns = max(_cells(self.title[box]) + in_border, *map(_cells, self.lines[box]), 0) + 4
        rows = max(len(self.lines[box]), 1) + 2
        label = max(map(_cells, incoming), default=0)
        pitch = 2 if self.level else max(4, label + 3)
        span = max(len(incoming) - 1, 0) * pitch + 1
        across = max(rows if self.level else columns, span + 2)
        start = (across - span) // 2 if incoming else 0
        overhang = 0 if self.level or not label else max(0, start + span + 1 + label - across)
        return _Shape(
            along=columns if self.level else rows,
            across=across,
            inlets=tuple(range(start, start + span, pitch)) if incoming else (),
            outlet=(across - 1) // 2,
            overhang=overhang,
        )

    def _at(self, along: int, across: int) -> tuple[int, int]:
        """The column and row of a point of the layout."""
        return (along, across) if self.level else (across, along)

    def rows(self) -> list[str]:
        width, height = self._at(self.layout.along, self.layout.across)
        grid = [[" "] * width for _ in range(height)]
        for box in self.picture.boxes:
            self._draw_box(grid, box)
        self._draw_arrows(grid)
        for label, (along, across) in zip(self.labels, self.layout.labels, strict=True):
            column, row = (along + 1, across - 1) if self.level else (across + 2, along)
            _write(grid, column, row, label)
        return ["".join(row).rstrip() for row in grid]

    def _draw_box(self, grid: list[list[str]], box: Box) -> None:
        border = _BORDERS.get(box.kind, _PLAIN_BORDER)
        along, across, size_along, size_across = self.layout.boxes[box.id]
        left, top = self._at(along, across)
        width, height = self._at(size_along, size_across)
        right, bottom = left + width - 1, top + height - 1
        for column in range(left, right):
            grid[top][column] = grid[bottom][column] = border[4]
        for row in range(top, bottom):
            grid[row][left] = grid[row][right] = border[5]
        grid[top][left], grid[top][right] = border[0], border[1]
        grid[bottom][right], grid[bottom][left] = border[2], border[3]
        if self.lines[box.id]:
            _write(grid, left + 2, top, f" {self.title[box.id]} ")
            for row, line in enumerate(self.lines[box.id], start=top + 1):
                _write(grid, left + 2, row, line)
        else:
            title = self.title[box.id]
            _write(grid, left + (width - _cells(title)) // 2, (top + bottom) // 2, title)

    def _draw_arrows(self, grid: list[list[str]]) -> None:
        kinds = {box.id: box.kind for box in self.picture.boxes}
        strokes: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        heads = []
        for arrow, route in zip(self.picture.arrows, self.layout.routes, strict=True):
            for (along, across), (next_along, next_across) in pairwise(route):
                column, row = self._at(along, across)
                end_column, end_row = self._at(next_along, next_across)
                while (column, row) != (end_column, end_row):
                    step = _step(column, row, end_column, end_row)
                    strokes[column, row][arrow.source] |= step[2]
                    column, row = column + step[0], row + step[1]
                    strokes[column, row][arrow.source] |= step[3]
            along, across = route[0]
            column, row = self._at(along - 1, across)
            grid[row][column] = _BORDERS.get(kinds[arrow.source], _PLAIN_BORDER)[6 if self.level else 7]
            # The outlet on the border is the far end of the first stroke.
            strokes[self._at(along, across)][arrow.source] |= _LEFT if self.level else _UP
            heads.append(self._at(route[-1][0] - 1, route[-1][1]))
            del strokes[self._at(*route[-1])]  # the line ends before the border of its target
        for (column, row), by_source in strokes.items():
            # Two lines in one place cross, and the upright one stays whole.
            grid[row][column] = "│" if len(by_source) > 1 else _LINES[next(iter(by_source.values()))]
        for column, row in heads:
            grid[row][column] = "▶" if self.level else "▼"


def _step(column: int, row: int, end_column: int, end_row: int) -> tuple[int, int, int, int]:
    """One step towards the end: columns, rows, the side by which a cell is left, the side of the next."""
    if column != end_column:
        return (1, 0, _RIGHT, _LEFT) if column < end_column else (-1, 0, _LEFT, _RIGHT)
    return (0, 1, _DOWN, _UP) if row < end_row else (0, -1, _UP, _DOWN)


def _write(grid: list[list[str]], column: int, row: int, text: str) -> None:
    for char in text:
        cells = _char_cells(char)
        if cells == 0:
            grid[row][column - 1] += char  # an accent belongs to the letter before it
            continue
        grid[row][column] = char
        if cells == 2:
            grid[row][column + 1] = ""
        column += cells


# ---------------------------------------------------------------------------------------------------------------------
# The drawing as SVG
# ---------------------------------------------------------------------------------------------------------------------

_SVG_LEVEL = _Spacing(box_gap=26, lane_gap=22, part_gap=40, lead=22, pitch=14, tail=34, clearance=10)
_SVG_UPRIGHT = _Spacing(box_gap=28, lane_gap=24, part_gap=48, lead=20, pitch=14, tail=26, clearance=10)
_SVG_WIDE = 1500  # a level drawing wider than this turns upright: shrunk to fit a page it could not be read
_MARGIN, _PAD = 32, 16
_TEXT_ROOM, _LABEL_ROOM = 260, 170
_ROUND = {"source": 20, "sink": 20, "state": 8}
_CAPTIONS = {"source": "source", "step": "step", "state": "state", "sink": "sink"}

# Plain properties first, because not every viewer knows variables; a viewer that prefers dark overrides them. Every
# class has a prefix, so the drawing can be pasted into a page without dressing it.
_LIGHT = {
    ".lg-paper": "fill:#fbfbfa",
    ".lg-heading,.lg-title,.lg-strong": "fill:#1c2430",
    ".lg-line,.lg-note": "fill:#46505e",
    ".lg-label": "fill:#55606f",
    ".lg-edge": "stroke:#77828f",
    ".lg-head": "fill:#77828f",
    ".lg-rule": "stroke:#dadde1",
    ".lg-step": "fill:#ffffff;stroke:#9aa4b0",
    ".lg-source": "fill:#eef5fb;stroke:#5b8fb9",
    ".lg-state": "fill:#f6f1fb;stroke:#8d6fb3",
    ".lg-sink": "fill:#eef7f1;stroke:#57997a",
    ".lg-kind-step": "fill:#5b6673",
    ".lg-kind-source": "fill:#2b628f",
    ".lg-kind-state": "fill:#67478f",
    ".lg-kind-sink": "fill:#2a6b4d",
}
_DARK = {
    ".lg-paper": "fill:#14181d",
    ".lg-heading,.lg-title,.lg-strong": "fill:#eef1f4",
    ".lg-line,.lg-note": "fill:#b9c2cc",
    ".lg-label": "fill:#a7b1bc",
    ".lg-edge": "stroke:#8390a0",
    ".lg-head": "fill:#8390a0",
    ".lg-rule": "stroke:#313942",
    ".lg-step": "fill:#1d232a;stroke:#66717e",
    ".lg-source": "fill:#172633;stroke:#4f86b3",
    ".lg-state": "fill:#241d31;stroke:#8f74b8",
    ".lg-sink": "fill:#17291f;stroke:#4f9273",
    ".lg-kind-step": "fill:#a0abb7",
    ".lg-kind-source": "fill:#86b9e2",
    ".lg-kind-state": "fill:#bda3e0",
    ".lg-kind-sink": "fill:#82c7a4",
}
_TYPE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.lg-heading{font-size:17px;font-weight:600}
.lg-title{font-size:14px;font-weight:600}
.lg-line,.lg-note{font-size:12px}
.lg-strong{font-size:13px;font-weight:600}
.lg-label{font-size:11px}
.lg-caption{font-size:9px;font-weight:600;letter-spacing:1px}
.lg-box{stroke-width:1.5}
.lg-inner{fill:none;stroke-width:1}
.lg-edge{fill:none;stroke-width:1.5}
.lg-rule{stroke-width:1}"""


def _pixels(size: int, strong: bool = False) -> Callable[[str], int]:
    """Measure text set in `size` pixels: rather too wide than too narrow, as nobody knows which font it will get."""

    def measure(text: str) -> int:
        em = sum(_char_em(char) for char in text)
        return round(em * size * (1.1 if strong else 1.0) + 0.5)

    return measure


def _char_em(char: str) -> float:
    if char in "ijl.,:;|!'`I ":
        return 0.36
    if char in 'frt()[]{}/\\-"':
        return 0.43
    if char in "mwMW@%…—":
        return 1.0
    if _char_cells(char) != 1:
        return 1.0 * _char_cells(char) / 2
    if char.isascii():
        return 0.74 if char.isupper() else 0.64
    return 0.85


_HEADING, _TITLE, _STRONG = _pixels(17, strong=True), _pixels(14, strong=True), _pixels(13, strong=True)
_LINE, _LABEL, _CAPTION = _pixels(12), _pixels(11), _pixels(9, strong=True)


@dataclass(frozen=True)
class _SvgDrawing:
    """One picture, laid out; `level` flows to the right, otherwise down."""

    picture: Picture
    level: bool
    layout: _Layout

    @classmethod
    def of(cls, picture: Picture) -> "_SvgDrawing":
        level = cls._laid_out(picture, level=True)
        if level.width <= _SVG_WIDE:
            return level
        upright = cls._laid_out(picture, level=False)
        return upright if upright.width < level.width else level

    @classmethod
    def _laid_out(cls, picture: Picture, level: bool) -> "_SvgDrawing":
        incoming: dict[str, list[int]] = defaultdict(list)
        room = []
        for arrow in picture.arrows:
            label = _LABEL(_cut(_printable(arrow.label), _LABEL_ROOM, _LABEL)) if _printable(arrow.label) else 0
            incoming[arrow.target].append(label)
            room.append((label if level else 16) if label else 0)
        shapes = {box.id: cls._shape(box, incoming[box.id], level) for box in picture.boxes}
        return cls(picture, level, _lay_out(picture, shapes, room, _SVG_LEVEL if level else _SVG_UPRIGHT))

    @staticmethod
    def _shape(box: Box, incoming: list[int], level: bool) -> _Shape:
        texts = [_TITLE(_cut(_printable(box.title), _TEXT_ROOM, _TITLE))]
        texts += [_LINE(_cut(_printable(line), _TEXT_ROOM, _LINE)) for line in box.lines]
        texts += [_CAPTION(_caption(box)) + len(_caption(box))]
        # A whole number of twos: centres of boxes of one layer then meet exactly, and lines stay straight.
        width = (max(max(texts) + 2 * _PAD, 88) + 1) // 2 * 2
        height = 54 + 16 * len(box.lines) + (4 if box.lines else 0)
        label = max(incoming, default=0)
        pitch = (26 if label else 20) if level else max(24, label + 20)
        span = max(len(incoming) - 1, 0) * pitch
        across = max(height if level else width, span + 36)
        start = (across - span) // 2
        return _Shape(
            along=width if level else height,
            across=across,
            inlets=tuple(start + pitch * index for index in range(len(incoming))),
            outlet=across // 2,
            overhang=0 if level or not label else max(0, start + span + 8 + label - across),
        )

    @property
    def width(self) -> int:
        return self.layout.along if self.level else self.layout.across

    @property
    def height(self) -> int:
        return self.layout.across if self.level else self.layout.along

    def elements(self, left: int, top: int) -> list[str]:
        def at(along: int, across: int) -> tuple[int, int]:
            return (left + along, top + across) if self.level else (left + across, top + along)

        drawn = []
        for route in self.layout.routes:
            corners = [at(*corner) for corner in route]
            drawn.append(f'<path class="lg-edge" d="{_rounded(corners)}" marker-end="url(#lg-head)"/>')
        for arrow, (along, across) in zip(self.picture.arrows, self.layout.labels, strict=True):
            label = _cut(_printable(arrow.label), _LABEL_ROOM, _LABEL)
            if label:
                x, y = at(along, across)
                x, y = (x + 12, y - 6) if self.level else (x + 8, y + 14)
                drawn.append(_svg_text("lg-label", x, y, label))
        for box in self.picture.boxes:
            along, across, size_along, size_across = self.layout.boxes[box.id]
            x, y = at(along, across)
            width, height = (size_along, size_across) if self.level else (size_across, size_along)
            drawn.append(_svg_box(box, x, y, width, height))
        return drawn


def _caption(box: Box) -> str:
    return _CAPTIONS.get(box.kind, _CAPTIONS["step"]).upper()


def _svg_box(box: Box, x: int, y: int, width: int, height: int) -> str:
    kind = box.kind if box.kind in _CAPTIONS else "step"
    corner = _ROUND.get(kind, 8)
    words = [_printable(word) for word in (box.title, *box.lines)]
    parts = [
        f"<g><title>{escape(chr(10).join(words))}</title>",
        f'<rect class="lg-box lg-{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner}"/>',
    ]
    if kind == "state":
        parts.append(
            f'<rect class="lg-state lg-inner" style="fill:none" x="{x + 4}" y="{y + 4}"'
            f' width="{width - 8}" height="{height - 8}" rx="{corner - 3}"/>'
        )
    block = 38 + 16 * len(box.lines) + (4 if box.lines else 0)
    base = y + (height - block) // 2
    parts.append(_svg_text(f"lg-caption lg-kind-{kind}", x + _PAD, base + 9, _caption(box)))
    parts.append(_svg_text("lg-title", x + _PAD, base + 28, _cut(words[0], _TEXT_ROOM, _TITLE)))
    for index, line in enumerate(words[1:]):
        parts.append(_svg_text("lg-line", x + _PAD, base + 48 + 16 * index, _cut(line, _TEXT_ROOM, _LINE)))
    return "".join(parts) + "</g>"


def _svg_text(names: str, x: int, y: int, text: str) -> str:
    return f'<text class="{names}" x="{x}" y="{y}">{escape(text)}</text>'


def _rounded(corners: Sequence[tuple[int, int]]) -> str:
    """The path along the corners, each taken as a curve of at most half of its shorter side."""
    path = [f"M{corners[0][0]} {corners[0][1]}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        radius = min(9.0, _distance(before, corner) / 2, _distance(corner, after) / 2)
        if radius:
            start, end = _towards(corner, before, radius), _towards(corner, after, radius)
            path.append(f"L{start}Q{corner[0]} {corner[1]} {end}")
    return "".join(path) + f"L{corners[-1][0]} {corners[-1][1]}"


def _distance(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _towards(start: tuple[int, int], end: tuple[int, int], by: float) -> str:
    share = by / _distance(start, end)
    return f"{start[0] + (end[0] - start[0]) * share:g} {start[1] + (end[1] - start[1]) * share:g}"


def _wrap(text: str, room: int, measure: Callable[[str], int]) -> list[str]:
    lines = [""]
    for word in text.split():
        while word:
            joined = f"{lines[-1]} {word}" if lines[-1] else word
            if measure(joined) <= room:
                lines[-1], word = joined, ""
            elif lines[-1]:
                lines.append("")
            else:  # one word longer than a line
                end = max(1, next((n for n in range(len(word), 0, -1) if measure(word[:n]) <= room), 1))
                lines[-1], word = word[:end], word[end:]
                lines.append("")
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]


def _svg_document(drawings: Sequence[_SvgDrawing], pictures: Sequence[Picture], footer: Sequence[str]) -> str:
    width = max([480] + [drawing.width for drawing in drawings])
    body: list[str] = []
    y = _MARGIN
    for drawing in drawings:
        if body:
            y += 44
        heading = _cut(_printable(drawing.picture.title), width, _HEADING)
        if heading:
            body.append(_svg_text("lg-heading", _MARGIN, y + 15, heading))
            y += 40
        body += drawing.elements(_MARGIN, y)
        y += drawing.height
    if footer:
        if body:
            y += 36
            body.append(f'<line class="lg-rule" x1="{_MARGIN}" y1="{y}" x2="{_MARGIN + width}" y2="{y}"/>')
            y += 14
        for index, text in enumerate(footer):
            names, measure = ("lg-note", _LINE) if index else ("lg-strong", _STRONG)
            for line in _wrap(_printable(text), min(width, 860), measure):
                y += 20
                body.append(_svg_text(names, _MARGIN, y - 4, line))
            y += 4
    width, height = width + 2 * _MARGIN, y + _MARGIN
    title = ", ".join(filter(None, (_printable(picture.title) for picture in pictures))) or "Graph"
    light = "\n".join(f"{names}{{{style}}}" for names, style in _LIGHT.items())
    dark = "\n".join(f"{names}{{{style}}}" for names, style in _DARK.items())
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}"'
                f' viewBox="0 0 {width} {height}" style="max-width:100%;height:auto">'
            ),
            f"<title>{escape(title)}</title>",
            f"<style>\n{_TYPE}\n{light}\n@media (prefers-color-scheme:dark){{\n{dark}\n}}\n</style>",
            (
                '<defs><marker id="lg-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9"'
                ' markerUnits="userSpaceOnUse" orient="auto">'
                '<path class="lg-head" d="M0 0.5L10 5L0 9.5Z"/></marker></defs>'
            ),
            f'<rect class="lg-paper" width="{width}" height="{height}" rx="12"/>',
            *body,
            "</svg>",
        ]
    )
