"""Draws the lab's asset graph as docs/graph.svg: ``python -m kai_lab_pipeline.report.graph_picture``.

Made from the same tables the graph itself is made from, so the picture cannot tell another story. A row is a step of
the longest chain; each asset stands as late as what needs it allows, which puts a chart right above its release.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from kai_lab_pipeline.lab.spec import ASSETS, CHECKS, UPSTREAM

WIDTH, HEIGHT = 216, 46
COLUMN_GAP, ROW_GAP, MARGIN = 44, 30, 16
_SOURCES, _MAIN, _FIRST_SIDE = 0, 1, 2

_STYLE = """
svg { --card: #ffffff; --ink: #1b2430; --soft: #556070; --line: #8a96a6; --asset: #2f5597; --ground: #f6f7f9; }
@media (prefers-color-scheme: dark) {
  svg { --card: #1a2029; --ink: #e6eaf0; --soft: #a3afbf; --line: #6d7a8c; --asset: #9dbff5; --ground: #12161c; }
}
.ground { fill: var(--ground); }
.box { fill: var(--card); stroke: var(--asset); stroke-width: 1.5; }
.source .box { stroke: var(--line); stroke-dasharray: 5 3; }
.edge { fill: none; stroke: var(--line); stroke-width: 1.5; marker-end: url(#arrow); }
.head { fill: var(--line); }
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; text-anchor: middle; }
.name { fill: var(--ink); font-size: 13px; font-weight: 600; }
.note { fill: var(--soft); font-size: 11px; }
"""


@dataclass(frozen=True)
class Place:
    """Where an asset's box stands, in rows and columns of the grid."""

    row: int
    column: int

    @property
    def left(self) -> int:
        return MARGIN + self.column * (WIDTH + COLUMN_GAP)

    @property
    def right(self) -> int:
        return self.left + WIDTH

    @property
    def top(self) -> int:
        return MARGIN + self.row * (HEIGHT + ROW_GAP)

    @property
    def bottom(self) -> int:
        return self.top + HEIGHT

    @property
    def middle_x(self) -> int:
        return self.left + WIDTH // 2

    @property
    def middle_y(self) -> int:
        return self.top + HEIGHT // 2


def graph_svg(upstream: Mapping[str, tuple[str, ...]] = UPSTREAM) -> str:
    """The asset graph as SVG text; the same text for the same graph."""
    places = layout(upstream)
    width = max(place.right for place in places.values()) + MARGIN
    height = max(place.bottom for place in places.values()) + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title desc">',
        '<title id="title">The lab as assets</title>',
        f'<desc id="desc">{escape(_description(upstream))}</desc>',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect class="ground" width="{width}" height="{height}" rx="10"/>',
        *(
            f'<path class="edge" d="{_route(places, parent, child)}"/>'
            for child, parents in upstream.items()
            for parent in parents
        ),
        *(line for name, place in places.items() for line in _box(name, place, name not in upstream)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def layout(upstream: Mapping[str, tuple[str, ...]]) -> dict[str, Place]:
    """A place for every asset and every source it needs; no two share one, and all needs point downwards."""
    children: dict[str, list[str]] = {name: [] for name in upstream}
    for child, parents in upstream.items():
        for parent in parents:
            children.setdefault(parent, []).append(child)

    def below(name: str) -> int:
        """Steps of the longest chain that starts here."""
        return max((below(child) + 1 for child in children[name]), default=0)

    depth = {name: below(name) for name in children}
    last = max(depth.values())
    main: set[str] = set()
    name = next(name for name in upstream if depth[name] == last)
    while True:
        main.add(name)
        following = [child for child in children[name] if depth[child] == depth[name] - 1]
        if not following:
            break
        name = following[0]

    sides = [name for name in upstream if name not in main]

    def column(name: str) -> int:
        if name in main:
            return _MAIN
        if name in sides:
            return _FIRST_SIDE + sides.index(name)
        return _SOURCES if set(children[name]) & main else column(children[name][0])

    order = [*upstream, *(name for name in children if name not in upstream)]
    return {name: Place(last - depth[name], column(name)) for name in order}


def _route(places: Mapping[str, Place], parent: str, child: str) -> str:
    """Right-angled lines beside the boxes: from the bottom to the next row, else through a gap or a free column."""
    a, b = places[parent], places[child]
    if b.row == a.row + 1:
        half = a.bottom + ROW_GAP // 2 - 4
        return f"M{a.middle_x} {a.bottom} V{half} H{b.middle_x} V{b.top}"
    if a.column == b.column:
        gap = a.left - COLUMN_GAP // 3
        return f"M{a.left} {a.middle_y} H{gap} V{b.middle_y} H{b.left}"
    if any(place.column == b.column and a.row <= place.row < b.row for place in places.values()):
        gap = a.right + COLUMN_GAP // 3
        return f"M{a.right} {a.middle_y} H{gap} V{b.middle_y} H{b.left}"
    return f"M{a.right} {a.middle_y} H{b.middle_x} V{b.top}"


def _box(name: str, place: Place, source: bool) -> Iterator[str]:
    yield f"<g class={quoteattr('source' if source else 'asset')}>"
    yield f'<rect class="box" x="{place.left}" y="{place.top}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>'
    yield f'<text class="name" x="{place.middle_x}" y="{place.top + 20}">{escape(name)}</text>'
    yield f'<text class="note" x="{place.middle_x}" y="{place.top + 36}">{escape(_note(name, source))}</text>'
    yield "</g>"


def _note(name: str, source: bool) -> str:
    if source:
        return "version as data version"
    checks = CHECKS.get(name, ())
    gates = sum(check.gate for check in checks)
    words = f"{len(checks)} check{'s' if len(checks) != 1 else ''}"
    if gates:
        words += f", {gates} gate{'s' if gates != 1 else ''}"
    if name == ASSETS[-1]:
        return "eight claims, four formats"
    return words if checks else "no checks of its own"


def _description(upstream: Mapping[str, tuple[str, ...]]) -> str:
    return ". ".join(f"{child} needs {' and '.join(parents) or 'nothing'}" for child, parents in upstream.items()) + "."


def default_path() -> Path:
    """docs/graph.svg of the checkout this module is in."""
    return Path(__file__).resolve().parents[2] / "docs" / "graph.svg"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default_path()
    target.write_text(graph_svg(), encoding="utf-8", newline="\n")
    print(f"wrote {target}")
