"""Find a place for every box and a way for every arrow, so that a line can be followed with a finger.

Who starts at a box and follows its line ends at exactly the boxes that its arrows name, so a plan is never read as
saying more, or less, than it does. Four habits keep this rule:

    one line leaves a box, however many arrows it has; it forks on the way     ├ ┬ ┴ ┼ are forks
    every arrow enters its target at a place of its own; lines never flow together
    a line that must cross another passes under it, without touching           ─│─ is a crossing
    a line that passes a layer has a lane of its own there, so it never runs through a box

A layout knows only "along" (the way the events flow) and "across", in whole units that the drawings give a meaning:
the columns and rows of a terminal, or pixels. It takes five steps: layers by longest path, order within a layer by
barycenter, places by weighted median, lanes between layers by channel routing, then the lines themselves. The first two
need no sizes: `Layers` does them once, however many sizes are tried. Nothing here reads a clock or a hash order: the
same picture gives the same layout.
"""

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from typing import NamedTuple

from lockgate.planner.picture import Picture, flow_order


@dataclass(frozen=True)
class Shape:
    """The room a box needs. Offsets run across, from the start of the box."""

    along: int
    across: int
    inlets: tuple[int, ...]
    outlet: int
    overhang: int = 0  # room across, behind the end of the box, for the label of its last inlet


@dataclass(frozen=True)
class Spacing:
    """What stays free between the parts of a drawing."""

    box_gap: int  # across, between two boxes
    lane_gap: int  # across, between a passing line and its neighbour
    part_gap: int  # across, between parts of the graph that no arrow connects
    lead: int  # along, from a layer to the first lane
    pitch: int  # along, from lane to lane
    tail: int  # along, from the last lane (or the labels) to the next layer, arrow head included
    clearance: int  # lines of different boxes that come closer than this could be taken for one


@dataclass(frozen=True)
class Needs:
    """How much room a picture needs: each of its boxes, the label of each of its arrows (along), and between them."""

    shapes: Sequence[Shape]
    labels: Sequence[int]
    spacing: Spacing


@dataclass(frozen=True)
class Layout:
    """Where everything goes; points are (along, across), the lowest of each is 0."""

    along: int
    across: int
    boxes: Sequence[tuple[int, int, int, int]]  # per box: start along, start across, size along, size across
    routes: Sequence[Sequence[tuple[int, int]]]  # per arrow: corners, from box to box
    labels: Sequence[tuple[int, int]]  # per arrow: where its last straight stretch begins


class _Link(NamedTuple):
    """A piece of line from a node of one layer to one of the next; `arrow` is set where it enters a box."""

    left: int
    right: int
    arrow: int | None


_LANE = Shape(along=0, across=1, inlets=(0,), outlet=0)


class Layers:
    """A picture in layers: boxes by longest path, long arrows cut into links at every layer they pass.

    Nodes are numbers: first the boxes, as the picture has them, then the lanes on which lines pass a layer. A layer
    holds at most `boxes_per_layer`. Parts of the graph that no arrow connects stand side by side, or follow each other.
    """

    def __init__(self, picture: Picture, *, boxes_per_layer: int | None = None, parts_in_a_row: bool = False) -> None:
        part_of = _parts(picture)
        layer_of = _layer_boxes(picture, part_of, boxes_per_layer, parts_in_a_row)
        self.parts_in_a_row = parts_in_a_row
        self.box_count = len(picture.boxes)
        self.part_count = len(set(part_of.values()))
        self.count = max(layer_of.values(), default=-1) + 1
        self.most_boxes = max(Counter(layer_of.values()).values(), default=0)
        self.layer = [layer_of[box.id] for box in picture.boxes]  # per node
        self.part = [part_of[box.id] for box in picture.boxes]  # per node
        self.links: list[_Link] = []
        self.into: list[list[int]] = [[] for _ in picture.boxes]  # per node, indices of links
        self.out_of: list[list[int]] = [[] for _ in picture.boxes]
        node_of = {box.id: node for node, box in enumerate(picture.boxes)}
        lanes: dict[tuple[int, int], int] = {}
        self.paths = [
            self._path(index, node_of[arrow.source], node_of[arrow.target], lanes)
            for index, arrow in enumerate(picture.arrows)
        ]

    def _path(self, arrow: int, source: int, target: int, lanes: dict[tuple[int, int], int]) -> list[int]:
        path, left = [], source
        for layer in range(self.layer[source] + 1, self.layer[target]):
            # All arrows of a box share one lane: a fork is drawn as late as possible.
            if (source, layer) not in lanes:
                lane = lanes[source, layer] = len(self.layer)
                self.layer.append(layer)
                self.part.append(self.part[source])
                self.into.append([])
                self.out_of.append([])
                self._connect(_Link(left, lane, None))
            left = lanes[source, layer]
            path += self.into[left]
        self._connect(_Link(left, target, arrow))
        return [*path, len(self.links) - 1]

    def _connect(self, link: _Link) -> None:
        self.out_of[link.left].append(len(self.links))
        self.into[link.right].append(len(self.links))
        self.links.append(link)

    def shapes(self, needs: Needs) -> list[Shape]:
        """The shape of every node."""
        return [*needs.shapes, *[_LANE] * (len(self.layer) - self.box_count)]

    @cached_property
    def order(self) -> list[list[list[int]]]:
        """The nodes of every part, layer by layer, ordered so that few lines cross."""
        rights = [[self.links[link].right for link in links] for links in self.out_of]
        lefts = [[self.links[link].left for link in links] for links in self.into]
        return [_order_layers(self._as_met(part, rights), lefts, rights) for part in range(self.part_count)]

    def _as_met(self, part: int, rights: Sequence[list[int]]) -> list[list[int]]:
        """The nodes of a part by layer, in the order in which a walk along the arrows meets them."""
        layers: list[list[int]] = [[] for _ in range(self.count)]
        seen: set[int] = set()
        stack = [node for node in range(self.box_count) if not self.into[node] and self.part[node] == part][::-1]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                layers[self.layer[node]].append(node)
                stack += reversed(rights[node])
        return layers

    @cached_property
    def inlet(self) -> list[int]:
        """Which inlet of its target each link takes: in the order of what comes before, so that they do not cross."""
        rank = [0] * len(self.layer)
        for part in self.order:
            for layer in part:
                for index, node in enumerate(layer):
                    rank[node] = index
        inlet = [0] * len(self.links)
        for links in self.into:
            for index, link in enumerate(sorted(links, key=lambda link: (rank[self.links[link].left], link))):
                inlet[link] = index
        return inlet


def _parts(picture: Picture) -> dict[str, int]:
    """Number the connected parts of the graph, in the order of their first box."""
    near: dict[str, list[str]] = defaultdict(list)
    for arrow in picture.arrows:
        near[arrow.source].append(arrow.target)
        near[arrow.target].append(arrow.source)
    part_of: dict[str, int] = {}
    number = 0
    for box in picture.boxes:
        if box.id not in part_of:
            stack = [box.id]
            while stack:
                name = stack.pop()
                if name not in part_of:
                    part_of[name] = number
                    stack.extend(near[name])
            number += 1
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
    order = flow_order(picture)
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


def _order_layers(layers: list[list[int]], lefts: Sequence[list[int]], rights: Sequence[list[int]]) -> list[list[int]]:
    """Order every layer so that few lines cross: barycenter sweeps to and fro, then swaps of neighbours."""
    best, fewest = [list(layer) for layer in layers], _count_crossings(layers, rights)
    for sweep in range(12):
        if not fewest:
            break
        near, step = (lefts, 1) if sweep % 2 == 0 else (rights, -1)
        for beside, layer in pairwise(layers[::step]):
            rank = {node: index for index, node in enumerate(beside)}
            wish = {
                node: sum(rank[other] for other in near[node]) / len(near[node]) if near[node] else index
                for index, node in enumerate(layer)
            }
            layer.sort(key=wish.__getitem__)
        _swap_neighbours(layers, lefts, rights)
        crossings = _count_crossings(layers, rights)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    return best


def _count_crossings(layers: list[list[int]], rights: Sequence[list[int]]) -> int:
    crossings = 0
    for layer, following in pairwise(layers):
        rank = {node: index for index, node in enumerate(following)}
        seen: list[int] = []
        for node in layer:
            ends = [rank[right] for right in rights[node]]
            crossings += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossings


def _swap_neighbours(layers: list[list[int]], lefts: Sequence[list[int]], rights: Sequence[list[int]]) -> None:
    rank = {node: index for layer in layers for index, node in enumerate(layer)}

    def crossings(first: int, second: int) -> int:
        return sum(rank[a] > rank[b] for near in (lefts, rights) for a in near[first] for b in near[second])

    for layer in layers:
        for index in range(len(layer) - 1):
            first, second = layer[index], layer[index + 1]
            if crossings(second, first) < crossings(first, second):
                layer[index], layer[index + 1] = second, first
                rank[first], rank[second] = index + 1, index


def least_size(layers: Layers, needs: Needs) -> tuple[int, int]:
    """A size, along and across, that no layout goes below; cheap, because nothing is placed for it."""
    spacing, shapes = needs.spacing, layers.shapes(needs)
    gap = min(spacing.box_gap, spacing.lane_gap)
    across = [[-gap] * layers.count for _ in range(layers.part_count)]
    for node, shape in enumerate(shapes):
        across[layers.part[node]][layers.layer[node]] += shape.across + shape.overhang + gap
    widest = [max(part) for part in across]
    along = sum(_depths(layers, shapes)) + sum(_label_rooms(layers, needs))
    return (
        along + (spacing.lead + spacing.tail) * (layers.count - 1),
        max(widest, default=0) if layers.parts_in_a_row else sum(widest) + spacing.part_gap * (len(widest) - 1),
    )


def lay_out(layers: Layers, needs: Needs, *, limit: int | None = None) -> Layout:
    """Lay a picture out; lines that could be straight are bent where the drawing would reach beyond `limit` across."""
    place = [0] * len(layers.layer)
    shapes = layers.shapes(needs)
    offset = 0
    for part in layers.order:
        _Placement(layers, part, place, shapes, needs.spacing).settle(limit)
        nodes = [node for layer in part for node in layer]
        low = min(place[node] for node in nodes)
        for node in nodes:
            place[node] += offset - low
        if not layers.parts_in_a_row:
            offset = max(_end(place[node], shapes[node]) for node in nodes) + needs.spacing.part_gap
    return _draw_lines(layers, place, needs)


def _end(place: int, shape: Shape) -> int:
    return place + shape.across + shape.overhang


def _depths(layers: Layers, shapes: Sequence[Shape]) -> list[int]:
    """How far along every layer reaches."""
    depths = [0] * layers.count
    for layer, shape in zip(layers.layer, shapes, strict=True):
        depths[layer] = max(depths[layer], shape.along)
    return depths


def _label_rooms(layers: Layers, needs: Needs) -> list[int]:
    """How much room the labels need, along, behind every layer."""
    rooms = [0] * layers.count
    for link in layers.links:
        if link.arrow is not None:
            layer = layers.layer[link.left]
            rooms[layer] = max(rooms[layer], needs.labels[link.arrow])
    return rooms


class _Placement:
    """Places the nodes of one part across, keeping their order, so that lines run as straight as they can."""

    def __init__(
        self, layers: Layers, order: list[list[int]], place: list[int], shapes: Sequence[Shape], spacing: Spacing
    ) -> None:
        self.order, self.place, self.shapes = order, place, shapes
        self.links, self.into, self.out_of = layers.links, layers.into, layers.out_of
        self.nodes = [node for layer in order for node in layer]
        self.here = [link for node in self.nodes for link in self.out_of[node]]
        is_lane = [node >= layers.box_count for node in range(len(place))]
        # Per link, from its start to the place of its target: a line is straight if that is where the target stands.
        self.shift = [
            shapes[left].outlet - shapes[right].inlets[inlet]
            for (left, right, _), inlet in zip(layers.links, layers.inlet, strict=True)
        ]
        # A long line with a kink in the middle of nowhere is the first thing the eye catches.
        self.weight = [(1, 3, 9)[is_lane[left] + is_lane[right]] for left, right, _ in layers.links]
        # Where a node stands if its layer is packed; between neighbours, how far apart they must be.
        self.packed: dict[int, int] = {}
        self.beside: dict[tuple[int, int], int] = {}
        for layer in order:
            self.packed.update(dict.fromkeys(layer[:1], 0))
            for first, second in pairwise(layer):
                gap = spacing.lane_gap if is_lane[first] or is_lane[second] else spacing.box_gap
                self.packed[second] = _end(self.packed[first], shapes[first]) + gap
                self.beside[first, 1], self.beside[second, -1] = second, first

    def settle(self, limit: int | None) -> None:
        """Move whole layers to and fro, then what hangs together, then squeeze all of it into the limit."""
        for layer in self.order:
            self._settle_layer(layer, look_back=True, look_ahead=False)
        least: tuple[int, int] | None = None
        best: list[int] = []
        views = [(False, False, True), (True, True, False)] * 3 + [(True, True, True), (False, True, True)] * 2
        for forth, look_back, look_ahead in views:
            for layer in self.order if forth else reversed(self.order):
                self._settle_layer(layer, look_back, look_ahead)
            cost = self._cost((self._bend(link), self.weight[link]) for link in self.here)
            if least is None or cost < least:
                least, best = cost, [self.place[node] for node in self.nodes]
            if not any(least):
                break
        for node, place in zip(self.nodes, best, strict=True):
            self.place[node] = place
        for _ in range(4):
            if not self._straighten():
                break
        if limit is not None:
            self._squeeze(limit)

    def _bend(self, link: int) -> int:
        left, right, _ = self.links[link]
        return self.place[left] + self.shift[link] - self.place[right]

    @staticmethod
    def _cost(bends: Iterable[tuple[int, int]]) -> tuple[int, int]:
        total = squares = 0
        for bend, weight in bends:
            total += abs(bend) * weight
            squares += bend * bend
        return total, squares

    def _settle_layer(self, layer: list[int], look_back: bool, look_ahead: bool) -> None:
        # Isotonic regression: neighbours that want the same place form a block, and the block moves as one. By median
        # and not by mean, because a line is either straight or it is not.
        place, links, shift, weight = self.place, self.links, self.shift, self.weight
        blocks: list[tuple[int, list[int], list[tuple[int, int]]]] = []  # median, members, what pulls at them
        for node in layer:
            wishes = []
            if look_back:
                wishes += [(place[links[link].left] + shift[link], weight[link]) for link in self.into[node]]
            if look_ahead:
                wishes += [(place[links[link].right] - shift[link], weight[link]) for link in self.out_of[node]]
            if wishes:
                wish, strength = _weighted_median(wishes), sum(weight for _, weight in wishes) * 8
            else:
                wish, strength = place[node], 1
            block = (wish - self.packed[node], [node], [(wish - self.packed[node], strength)])
            while blocks and blocks[-1][0] > block[0]:
                _, members, pulls = blocks.pop()
                pulls = pulls + block[2]
                block = (_weighted_median(pulls), members + block[1], pulls)
            blocks.append(block)
        for base, members, _ in blocks:
            for node in members:
                place[node] = base + self.packed[node]

    def _straighten(self) -> bool:
        """Straighten lines one by one, where a whole region stands a little off; says whether that helped any."""
        helped = False
        for link in self.here:
            (left, right, _), bend = self.links[link], self._bend(link)
            for node, by in ((right, bend), (left, -bend)):
                if by and self._helps(moving := self._dragged(node, by), by):
                    helped = True
                    for other in moving:
                        self.place[other] += by
        return helped

    def _dragged(self, node: int, by: int) -> set[int]:
        """What moves with a node: whatever hangs on a straight line or stands in the way."""
        place, links, shift = self.place, self.links, self.shift
        way = 1 if by > 0 else -1
        moving = {node}
        stack = [node]
        while stack:
            node = stack.pop()
            here = place[node]
            with_it = []
            for link in self.into[node]:
                left = links[link].left
                if place[left] + shift[link] == here:
                    with_it.append(left)
            for link in self.out_of[node]:
                right = links[link].right
                if here + shift[link] == place[right]:
                    with_it.append(right)
            blocked = self.beside.get((node, way))
            if blocked is not None:
                free = abs(place[blocked] - here) - abs(self.packed[blocked] - self.packed[node])
                if free < abs(by):
                    with_it.append(blocked)
            for other in with_it:
                if other not in moving:
                    moving.add(other)
                    stack.append(other)
        return moving

    def _helps(self, moving: set[int], by: int) -> bool:
        # Lines with both ends among what moves stay as they are.
        changes = []
        for node in moving:
            for link in self.out_of[node]:
                if self.links[link].right not in moving:
                    changes.append((self._bend(link), by, self.weight[link]))
            for link in self.into[node]:
                if self.links[link].left not in moving:
                    changes.append((self._bend(link), -by, self.weight[link]))
        return self._cost((bend + change, weight) for bend, change, weight in changes) < self._cost(
            (bend, weight) for bend, _, weight in changes
        )

    def _squeeze(self, limit: int) -> None:
        place, packed = self.place, self.packed
        low = min(place[node] for node in self.nodes)
        for layer in filter(None, self.order):
            latest = low + limit - _end(packed[layer[-1]], self.shapes[layer[-1]])
            for node in reversed(layer):
                latest = min(latest, place[node] - packed[node])
                place[node] = latest + packed[node]
            earliest = low  # a layer that cannot fit stays too wide
            for node in layer:
                earliest = max(earliest, place[node] - packed[node])
                place[node] = earliest + packed[node]


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
            free = (run for run in runs if not any(goes_before(other, run) for other in runs if other is not run))
            ready = next(free, None)
            if ready is None:
                break
            ordered.append(ready)
            runs.remove(ready)
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
    heights = (height for distance in count() for height in (wish - distance, wish + distance))
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


def _draw_lines(layers: Layers, place: list[int], needs: Needs) -> Layout:
    """Turn places and lanes into boxes and corners, with the lowest coordinate at 0."""
    spacing, shapes = needs.spacing, layers.shapes(needs)
    start = [place[link.left] + shapes[link.left].outlet for link in layers.links]
    end = [
        place[link.right] + shapes[link.right].inlets[inlet]
        for link, inlet in zip(layers.links, layers.inlet, strict=True)
    ]
    nets: list[dict[int, tuple[int, tuple[int, ...]]]] = [{} for _ in range(layers.count)]
    for node, links in enumerate(layers.out_of):
        if links:
            nets[layers.layer[node]][node] = (start[links[0]], tuple(sorted(end[link] for link in links)))
    channels = [_route_channel(net, spacing.clearance) for net in nets]

    # Along: layer, lanes, labels, arrow heads, next layer.
    depths = _depths(layers, shapes)
    layer_at, lanes_at, labels_at = [0], [], []
    for depth, channel, label_room in zip(depths, channels, _label_rooms(layers, needs), strict=True):
        lanes_at.append(layer_at[-1] + depth + spacing.lead)
        lanes = (channel.lane_count - 1) * spacing.pitch + 1 if channel.lane_count else 0
        labels_at.append(lanes_at[-1] + lanes)
        layer_at.append(labels_at[-1] + label_room + spacing.tail)

    routes: list[list[tuple[int, int]]] = []
    labels: list[tuple[int, int]] = []
    for path in layers.paths:
        first = layers.layer[layers.links[path[0]].left]
        corners = [(layer_at[first] + depths[first], start[path[0]])]
        for level, link in enumerate(path, start=first):
            net, channel = layers.links[link].left, channels[level]
            cut = channel.cut_at.get(net)
            turns = [("whole", start[link], end[link])]
            if cut is not None:
                turns = [("first", start[link], cut), ("second", cut, end[link])]
            for role, entry, exit_ in turns:
                if entry != exit_:
                    lane = lanes_at[level] + channel.lane_of[net, role] * spacing.pitch
                    corners += [(lane, entry), (lane, exit_)]
        last = first + len(path)
        routes.append([*corners, (layer_at[last], end[path[-1]])])
        labels.append((labels_at[last - 1], end[path[-1]]))

    # A line cut in two may pass outside of everything else.
    heights = [across for route in routes for _, across in route]
    low = min([*place, *heights], default=0)
    high = max([*map(_end, place, shapes), *(across + 1 for across in heights)], default=0)
    return Layout(
        along=layer_at[-2] + depths[-1] if depths else 0,
        across=high - low,
        boxes=[
            (layer_at[layers.layer[node]], place[node] - low, depths[layers.layer[node]], shape.across)
            for node, shape in enumerate(needs.shapes)
        ],
        routes=[[(along, across - low) for along, across in route] for route in routes],
        labels=[(along, across - low) for along, across in labels],
    )
