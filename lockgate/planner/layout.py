"""Find a place for every box and a way for every arrow, so that a line can be followed with a finger.

If you start at a box and follow its line, you end at exactly the boxes that its arrows name. So a plan never seems to
say more, or less, than it does. Four rules ensure this:

    one line leaves a box, however many arrows it has; it forks on the way     ├ ┬ ┴ ┼ are forks
    every arrow enters its target at a place of its own; lines never flow together
    a line that must cross another passes under it, without touching           ─│─ is a crossing
    a line that passes a layer has its own lane there, so it never runs through a box

A layout knows only "along" (the way the events flow) and "across", in whole units that the drawings give a meaning:
the columns and rows of a terminal, or pixels. It takes five steps: layers by longest path, and order within a layer by
barycenter (layers.py); places by weighted median; lanes between layers by channel routing (lanes.py); then the lines
themselves. Nothing here reads a clock or depends on the order of hashes: the same picture gives the same layout.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lockgate.planner.lanes import route_channel
from lockgate.planner.layers import Layers


@dataclass(frozen=True)
class Shape:
    """The room a box needs. Offsets run across, from the start of the box."""

    along: int
    across: int
    inlets: tuple[int, ...]
    outlet: int
    overhang: int = 0  # room across, after the end of the box, for the label of its last inlet


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


_LANE = Shape(along=0, across=1, inlets=(0,), outlet=0)


def least_size(layers: Layers, needs: Needs) -> tuple[int, int]:
    """A size, along and across, that no layout goes below; cheap, because nothing is placed for it."""
    spacing, shapes = needs.spacing, _shapes(layers, needs)
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
    """Lay a picture out; straight lines are bent if the drawing would reach beyond `limit` across."""
    place = [0] * len(layers.layer)
    shapes = _shapes(layers, needs)
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


def _shapes(layers: Layers, needs: Needs) -> list[Shape]:
    """The shape of every node."""
    return [*needs.shapes, *[_LANE] * (len(layers.layer) - layers.box_count)]


def _end(place: int, shape: Shape) -> int:
    return place + shape.across + shape.overhang


def _depths(layers: Layers, shapes: Sequence[Shape]) -> list[int]:
    """How far along every layer reaches."""
    depths = [0] * layers.count
    for layer, shape in zip(layers.layer, shapes, strict=True):
        depths[layer] = max(depths[layer], shape.along)
    return depths


def _label_rooms(layers: Layers, needs: Needs) -> list[int]:
    """How much room the labels need, along, after every layer."""
    rooms = [0] * layers.count
    for link in layers.links:
        if link.arrow is not None:
            layer = layers.layer[link.left]
            rooms[layer] = max(rooms[layer], needs.labels[link.arrow])
    return rooms


class _Placement:
    """Places the nodes of one part across and keeps their order, so that lines are as straight as possible."""

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
        # A reader's eye catches a long line with a kink first.
        self.weight = [(1, 3, 9)[is_lane[left] + is_lane[right]] for left, right, _ in layers.links]
        # The place of a node if its layer is packed; between neighbours, their least distance.
        self.packed: dict[int, int] = {}
        self.beside: dict[tuple[int, int], int] = {}
        for layer in order:
            self.packed.update(dict.fromkeys(layer[:1], 0))
            for first, second in pairwise(layer):
                gap = spacing.lane_gap if is_lane[first] or is_lane[second] else spacing.box_gap
                self.packed[second] = _end(self.packed[first], shapes[first]) + gap
                self.beside[first, 1], self.beside[second, -1] = second, first

    def settle(self, limit: int | None) -> None:
        """Move whole layers to and fro, then connected nodes, then squeeze everything into the limit."""
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
            preferences = []
            if look_back:
                preferences += [(place[links[link].left] + shift[link], weight[link]) for link in self.into[node]]
            if look_ahead:
                preferences += [(place[links[link].right] - shift[link], weight[link]) for link in self.out_of[node]]
            if preferences:
                preferred, strength = _weighted_median(preferences), sum(weight for _, weight in preferences) * 8
            else:
                preferred, strength = place[node], 1
            block = (preferred - self.packed[node], [node], [(preferred - self.packed[node], strength)])
            while blocks and blocks[-1][0] > block[0]:
                _, members, pulls = blocks.pop()
                pulls = pulls + block[2]
                block = (_weighted_median(pulls), members + block[1], pulls)
            blocks.append(block)
        for base, members, _ in blocks:
            for node in members:
                place[node] = base + self.packed[node]

    def _straighten(self) -> bool:
        """Straighten lines one by one, if a whole region is slightly off; say whether that helped any."""
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
        """What moves with a node: everything that a straight line connects to it, or that stands in the way."""
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
        # Lines with both ends among the moved nodes stay as they are.
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


def _draw_lines(layers: Layers, place: list[int], needs: Needs) -> Layout:
    """Turn places and lanes into boxes and corners, with the lowest coordinate at 0."""
    spacing, shapes = needs.spacing, _shapes(layers, needs)
    start = [place[link.left] + shapes[link.left].outlet for link in layers.links]
    end = [
        place[link.right] + shapes[link.right].inlets[inlet]
        for link, inlet in zip(layers.links, layers.inlet, strict=True)
    ]
    nets: list[dict[int, tuple[int, tuple[int, ...]]]] = [{} for _ in range(layers.count)]
    for node, links in enumerate(layers.out_of):
        if links:
            nets[layers.layer[node]][node] = (start[links[0]], tuple(sorted(end[link] for link in links)))
    channels = [route_channel(net, spacing.clearance) for net in nets]

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

    # A line that was cut in two may pass outside of everything else.
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
