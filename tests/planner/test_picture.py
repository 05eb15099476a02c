"""Drawings are read back: lines are followed cell by cell, boxes are found by their borders, SVG is parsed as XML."""

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.errors import BadJob
from lockgate.planner.drawing import draw_text
from lockgate.planner.layers import Layers
from lockgate.planner.layout import Needs, Shape, Spacing, lay_out, least_size
from lockgate.planner.picture import Arrow, Box, Picture
from lockgate.planner.svg import draw_svg

KINDS = ("source", "step", "state", "sink")
UP, RIGHT, DOWN, LEFT = (0, -1), (1, 0), (0, 1), (-1, 0)
OPENINGS = {
    "│": {UP, DOWN},
    "─": {LEFT, RIGHT},
    "┌": {DOWN, RIGHT},
    "┐": {DOWN, LEFT},
    "└": {UP, RIGHT},
    "┘": {UP, LEFT},
    "├": {UP, DOWN, RIGHT},
    "┤": {UP, DOWN, LEFT},
    "┬": {DOWN, LEFT, RIGHT},
    "┴": {UP, LEFT, RIGHT},
    "┼": {UP, DOWN, LEFT, RIGHT},
}
TOP_LEFT, UPRIGHT, SVG = "╭┌╔", "│║├╟", "{http://www.w3.org/2000/svg}"


def boxes_by_title(rows: list[str], titles: list[str]) -> dict[str, tuple[int, int, int, int]]:
    """Find every box from its title: left, top, right, bottom, all inside the box."""
    found = {}
    for title in titles:
        (row, column), *others = [
            (y, match.start())
            for y, line in enumerate(rows)
            for match in re.finditer(rf"(?<=[ ]){re.escape(title)}(?=[ ])", line)
        ]
        assert not others, f"{title} is drawn more than once"
        left = column - 1
        while rows[row][left] not in UPRIGHT + TOP_LEFT:
            left -= 1
        top = row
        while rows[top][left] not in TOP_LEFT:
            top -= 1
        right = left + 1
        while rows[top][right] not in "╮┐╗":
            right += 1
        bottom = top + 1
        while rows[bottom][left] not in "╰└╚":
            bottom += 1
        assert rows[bottom][right] in "╯┘╝"
        found[title] = (left, top, right, bottom)
    return found


def targets_reached(rows: list[str], boxes: dict[str, tuple[int, int, int, int]], title: str) -> list[str]:
    """Follow the line that leaves a box to every arrow head; a title comes once for every head at its box."""
    owner = {
        (x, y): name
        for name, (left, top, right, bottom) in boxes.items()
        for x in range(left, right + 1)
        for y in range(top, bottom + 1)
    }
    left, top, right, bottom = boxes[title]
    starts = [((right, y), RIGHT) for y in range(top, bottom + 1) if rows[y][right] in "├╟"]
    starts += [((x, bottom), DOWN) for x in range(left, right + 1) if rows[bottom][x] in "┬╤"]
    reached, seen = [], set()
    while starts:
        (x, y), (dx, dy) = starts.pop()
        x, y = x + dx, y + dy
        if ((x, y), (dx, dy)) in seen:
            continue
        seen.add(((x, y), (dx, dy)))
        assert (x, y) not in owner, f"the line of {title} runs into {owner[x, y]}"
        char = rows[y][x]
        if char in "▶▼":
            assert (dx, dy) == (RIGHT if char == "▶" else DOWN)
            reached.append(owner[x + dx, y + dy])
        elif char == "│" and dx:
            starts.append(((x, y), (dx, dy)))  # passes under another line
        else:
            assert (-dx, -dy) in OPENINGS[char], f"the line of {title} breaks at column {x}, row {y}: {char!r}"
            starts += [((x, y), way) for way in OPENINGS[char] - {(-dx, -dy)}]
    return reached


def assert_drawing_says_what_the_picture_says(picture: Picture, width: int) -> None:
    rows = draw_text(picture, width).split("\n")
    longest = max(map(len, rows))
    rows = [row.ljust(longest + 1) for row in rows]
    titles = {box.id: box.title for box in picture.boxes}
    boxes = boxes_by_title(rows, list(titles.values()))
    for (one, a), (other, b) in combinations(boxes.items(), 2):
        apart = a[2] < b[0] or b[2] < a[0] or a[3] < b[1] or b[3] < a[1]
        assert apart, f"{one} and {other} overlap"
    for box in picture.boxes:
        expected = sorted(titles[arrow.target] for arrow in picture.arrows if arrow.source == box.id)
        assert sorted(targets_reached(rows, boxes, box.title)) == expected
    heads = sum(row.count("▶") + row.count("▼") for row in rows)
    assert heads == len(picture.arrows)


def graph(title: str, names: str, arrows: str) -> Picture:
    """`names` are words, with s/t/k before a colon for source, state and sink; `arrows` are a>b or a>b=label."""
    short = {"s": "source", "t": "state", "k": "sink"}
    boxes = []
    for word in names.split():
        kind, _, name = word.rpartition(":")
        lines = ("KafkaSource", f"about {name}s", "2 tasks") if kind else ()
        boxes.append(Box(name, name.upper(), lines, short.get(kind, "step")))
    drawn = []
    for word in arrows.split():
        ends, _, label = word.partition("=")
        source, target = ends.split(">")
        drawn.append(Arrow(source, target, label))
    return Picture(title, tuple(boxes), tuple(drawn))


PICTURES = [
    graph("single", "s:only", ""),
    graph("chain", "s:requests parse t:minute k:counts", "requests>parse=forward parse>minute=key minute>counts"),
    graph("split", "s:in route k:eu k:us k:asia", "in>route route>eu=forward route>us=forward route>asia=random"),
    graph("merge", "s:web s:app s:tv all t:win k:a k:b", "web>all app>all tv>all all>win=key win>a win>b=broadcast"),
    graph("diamond", "s:in left t:right t:join k:out", "in>left in>right=key left>join right>join in>join join>out"),
    graph("two-parts", "s:a k:b s:c d k:e", "a>b c>d=forward d>e"),
    graph("strangers", "a b c d e f", ""),
    graph("parallel", "a b", "a>b=one a>b=two a>b"),
    graph("swapped", "a b c d", "a>d b>c a>c b>d"),
    graph(
        "twelve",
        "s:clicks s:views s:users pc pv all t:ses t:enr fork k:prof k:bots k:arch",
        "clicks>pc=forward views>pv=forward pc>all pv>all all>ses=key users>enr=broadcast ses>enr enr>fork fork>prof"
        " fork>bots pc>arch=random fork>arch",
    ),
]


@pytest.mark.parametrize("width", [40, 60, 100, 140])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.title)
def test_every_line_of_the_text_leads_from_its_box_to_exactly_its_targets(picture: Picture, width: int) -> None:
    assert_drawing_says_what_the_picture_says(picture, width)
    assert max(map(len, draw_text(picture, width).split("\n"))) <= width


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    count = draw(st.integers(1, 9))
    labels = st.sampled_from(["", "", "fwd", "by key (ip)"])
    lines = st.lists(st.sampled_from(["KafkaSource", "2 tasks", "a rather long line of text in a box"]), max_size=3)
    boxes = tuple(
        Box(f"id{index}", f"B{index}", tuple(draw(lines)), draw(st.sampled_from(KINDS))) for index in range(count)
    )
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=14)) if pairs else []
    return Picture("", boxes, tuple(Arrow(f"id{a}", f"id{b}", draw(labels)) for a, b in chosen))


@settings(max_examples=150, deadline=None)
@given(picture=pictures(), width=st.sampled_from([40, 60, 100, 140, 400]))
def test_lines_of_any_graph_can_be_followed_in_the_text(picture: Picture, width: int) -> None:
    assert_drawing_says_what_the_picture_says(picture, width)


@settings(max_examples=60, deadline=None)
@given(picture=pictures(), boxes_per_layer=st.sampled_from([None, 1, 2]), parts_in_a_row=st.booleans())
def test_no_layout_is_smaller_than_the_least_size(
    picture: Picture, boxes_per_layer: int | None, parts_in_a_row: bool
) -> None:
    incoming = [sum(arrow.target == box.id for arrow in picture.arrows) for box in picture.boxes]
    needs = Needs(
        shapes=[Shape(3 + count, 2 * count + 3, tuple(range(1, 2 * count, 2)), 1, count % 3) for count in incoming],
        labels=[len(arrow.label) for arrow in picture.arrows],
        spacing=Spacing(box_gap=2, lane_gap=1, part_gap=3, lead=1, pitch=2, tail=3, clearance=1),
    )
    layers = Layers(picture, boxes_per_layer=boxes_per_layer, parts_in_a_row=parts_in_a_row)
    along, across = least_size(layers, needs)
    for limit in (None, 0, across):
        layout = lay_out(layers, needs, limit=limit)
        assert layout.along >= along
        assert layout.across >= across


def test_a_graph_that_fits_nowhere_is_drawn_narrow_and_still_true() -> None:
    fan = graph("", "s:a k:b", " ".join(["a>b=label"] * 30))
    crowd = graph("", " ".join(f"n{i}x" for i in range(24)), " ".join(f"n{i}x>n{23 - i}x" for i in range(12)))
    for picture in (fan, crowd, Picture("", (*fan.boxes, *crowd.boxes), (*fan.arrows, *crowd.arrows))):
        assert_drawing_says_what_the_picture_says(picture, 40)


@settings(max_examples=60, deadline=None)
@given(picture=pictures(), junk=st.text(max_size=30))
def test_svg_of_any_graph_is_xml_with_lines_that_start_and_end_at_their_boxes(picture: Picture, junk: str) -> None:
    root = ElementTree.fromstring(draw_svg([picture], [junk]).encode())
    rects = [
        tuple(int(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if "lg-box" in rect.attrib["class"]
    ]
    box_at = dict(zip((box.id for box in picture.boxes), rects, strict=True))
    for one, other in combinations(rects, 2):
        apart = [a[axis] + a[axis + 2] <= b[axis] for a, b in ((one, other), (other, one)) for axis in (0, 1)]
        assert any(apart), "two boxes overlap"
    edges = [path.attrib["d"] for path in root.iter(f"{SVG}path") if path.attrib["class"] == "lg-edge"]
    for arrow, edge in zip(picture.arrows, edges, strict=True):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", edge)]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        assert on_border(points[0], box_at[arrow.source])
        assert on_border(points[-1], box_at[arrow.target])
        for (x1, y1), (x2, y2) in pairwise(points):
            for left, top, width, height in rects:
                inside_x = max(x1, x2) > left and min(x1, x2) < left + width
                inside_y = max(y1, y2) > top and min(y1, y2) < top + height
                assert not (inside_x and inside_y), "a line runs through a box"


def on_border(point: tuple[float, float], box: tuple[int, ...]) -> bool:
    (x, y), (left, top, width, height) = point, box
    return (x in (left, left + width) and top < y < top + height) or (
        y in (top, top + height) and left < x < left + width
    )


@settings(max_examples=60, deadline=None)
@given(title=st.text(max_size=60), line=st.text(max_size=60), label=st.text(max_size=60))
def test_any_text_can_be_drawn(title: str, line: str, label: str) -> None:
    picture = Picture(title, (Box("a", title, (line,)), Box("b", line)), (Arrow("a", "b", label),))
    assert "▶" in draw_text(picture, 120) or "▼" in draw_text(picture, 120)
    ElementTree.fromstring(draw_svg([picture], [title, line, label]).encode())


def test_level_when_it_fits_and_upright_when_it_does_not() -> None:
    chain = PICTURES[1]
    assert "▶" in draw_text(chain, 120)
    assert "▼" not in draw_text(chain, 120)
    assert "▼" in draw_text(chain, 60)
    assert "▶" not in draw_text(chain, 60)


def test_boxes_differ_by_kind() -> None:
    def corner(kind: str) -> str:
        return draw_text(Picture("", (Box("a", "a", kind=kind),), ()))[0]

    assert [corner(kind) for kind in KINDS] == ["╭", "┌", "╔", "╭"]


def test_labels_stand_beside_their_lines_in_full() -> None:
    drawn = draw_text(PICTURES[1], 120)
    assert "forward" in drawn
    assert "key" in drawn


def test_long_text_is_cut_with_an_ellipsis_and_kept_whole_as_a_tooltip() -> None:
    long = "x" * 300
    picture = Picture(long, (Box("a", long, (long,)), Box("b", "b")), (Arrow("a", "b", long),))
    drawn = draw_text(picture, 80)
    assert "…" in drawn
    assert max(map(len, drawn.split("\n"))) <= 80
    svg = ElementTree.fromstring(draw_svg([picture]))
    assert all(long not in (text.text or "") for text in svg.iter(f"{SVG}text"))
    assert any(long in (title.text or "") for title in svg.iter(f"{SVG}title"))


def test_wide_dead_letters_take_two_columns() -> None:
    rows = draw_text(Picture("", (Box("a", "注文"),), ())).split("\n")
    assert rows == ["┌──────┐", "│ 注文 │", "└──────┘"]


def test_svg_shows_titles_lines_labels_and_footer_escaped() -> None:
    picture = Picture("<Logical> & co", (Box("a", "a<b", ("x & y",)), Box("b", "b")), (Arrow("a", "b", '"<k>"'),))
    root = ElementTree.fromstring(draw_svg([picture, PICTURES[0]], ["reaches <all>", "because & so " * 40]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for expected in ("<Logical> & co", "a<b", "x & y", '"<k>"', "ONLY", "reaches <all>"):
        assert expected in texts
    assert sum("because" in (text or "") for text in texts) > 1, "a long footer line is wrapped"
    assert root.attrib["role"] == "img"
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "<Logical> & co, single"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.title)
def test_svg_view_box_holds_everything(picture: Picture) -> None:
    root = ElementTree.fromstring(draw_svg([picture], ["a footer"]))
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    for rect in root.iter(f"{SVG}rect"):
        assert int(rect.attrib.get("x", 0)) + int(rect.attrib["width"]) <= width
        assert int(rect.attrib.get("y", 0)) + int(rect.attrib["height"]) <= height


def test_drawings_are_the_same_every_time() -> None:
    for picture in PICTURES:
        assert draw_text(picture) == draw_text(picture)
    assert draw_svg(PICTURES, ["x"]) == draw_svg(PICTURES, ["x"])


def test_nothing_is_drawn_for_no_boxes() -> None:
    empty = Picture("Empty", (), ())
    assert draw_text(empty) == "Empty\n\n(nothing to draw)"
    ElementTree.fromstring(draw_svg([empty]))
    ElementTree.fromstring(draw_svg([]))


@pytest.mark.parametrize(
    ("picture", "what"),
    [
        (Picture("p", (Box("a", "a"), Box("a", "b")), ()), "2 boxes are called 'a'"),
        (Picture("p", (Box("a", "a"),), (Arrow("a", "b"),)), "no box is called 'b'"),
        (Picture("p", (Box("a", "a"), Box("b", "b")), (Arrow("a", "b"), Arrow("b", "a"))), "form a circle"),
    ],
)
def test_what_is_no_graph_is_refused(picture: Picture, what: str) -> None:
    with pytest.raises(BadJob, match=what):
        draw_text(picture)
    with pytest.raises(BadJob, match=what):
        draw_svg([picture])
