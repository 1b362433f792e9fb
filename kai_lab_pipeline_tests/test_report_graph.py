from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

from kai_lab_pipeline.lab.spec import ASSETS, UPSTREAM
from kai_lab_pipeline.report.graph_picture import default_path, graph_svg, layout

SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_picture_is_the_generated_one() -> None:
    assert default_path().read_text(encoding="utf-8") == graph_svg(), (
        "docs/graph.svg is out of date: run python -m kai_lab_pipeline.report.graph_picture"
    )


def test_every_asset_and_source_is_drawn_once_and_every_need_is_a_line() -> None:
    root = ET.fromstring(graph_svg())
    names = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    sources = {parent for parents in UPSTREAM.values() for parent in parents if parent not in UPSTREAM}
    assert sorted(map(str, names)) == sorted({*ASSETS, *sources})
    edges = [path for path in root.iter(f"{SVG}path") if path.get("class") == "edge"]
    assert len(edges) == sum(map(len, UPSTREAM.values()))


def test_needs_point_downwards_and_boxes_do_not_meet() -> None:
    places = layout(UPSTREAM)
    for child, parents in UPSTREAM.items():
        for parent in parents:
            assert places[parent].row < places[child].row, f"{parent} is not above {child}"
    assert len({(place.row, place.column) for place in places.values()}) == len(places)


def test_no_line_crosses_a_box() -> None:
    places = layout(UPSTREAM)
    root = ET.fromstring(graph_svg())
    for path in root.iter(f"{SVG}path"):
        if path.get("class") != "edge":
            continue
        for (x1, y1), (x2, y2) in _segments(path.get("d", "")):
            for name, place in places.items():
                inside_x = max(x1, x2) > place.left and min(x1, x2) < place.right
                inside_y = max(y1, y2) > place.top and min(y1, y2) < place.bottom
                assert not (inside_x and inside_y), f"{path.get('d')} crosses {name}"


def _segments(route: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    points: list[tuple[int, int]] = []
    for command, numbers in re.findall(r"([MHV])([\d ]+)", route):
        values = [int(number) for number in numbers.split()]
        if command == "M":
            points.append((values[0], values[1]))
        elif command == "H":
            points.append((values[0], points[-1][1]))
        else:
            points.append((points[-1][0], values[0]))
    return list(pairwise(points))


def test_the_picture_follows_the_graph() -> None:
    smaller = graph_svg({"cluster": (), "queues": ("cluster", "charts/kai_scheduler")})
    assert "charts/kai_scheduler" in smaller
    assert "shared_gpu_pod" not in smaller
