"""Put the boxes of a picture into layers, and order each layer so that few lines cross.

Layers are by longest path, the order within a layer by barycenter. No sizes are needed for either, so this is done
once, however many sizes are tried. The same picture gives the same layers: nothing depends on the order of hashes.
"""

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from lockgate.planner.picture import Picture, flow_order


class Link(NamedTuple):
    """A piece of line from a node of one layer to one of the next; `arrow` is set if it enters a box."""

    left: int
    right: int
    arrow: int | None


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
        self.links: list[Link] = []
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
                self._connect(Link(left, lane, None))
            left = lanes[source, layer]
            path += self.into[left]
        self._connect(Link(left, target, arrow))
        return [*path, len(self.links) - 1]

    def _connect(self, link: Link) -> None:
        self.out_of[link.left].append(len(self.links))
        self.into[link.right].append(len(self.links))
        self.links.append(link)

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
    """Put every box one layer after the last box that flows into it, later if that layer is full."""
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
            preferred = {
                node: sum(rank[other] for other in near[node]) / len(near[node]) if near[node] else index
                for index, node in enumerate(layer)
            }
            layer.sort(key=preferred.__getitem__)
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
