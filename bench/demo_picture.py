"""`make demo-picture`: runs the demo and draws what it shows, the live table and then the checks, as an animated SVG.

python -m bench.demo_picture docs/img/demo.svg
"""

from __future__ import annotations

import argparse
import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console, RenderableType

from tests.lab.demo import Demo
from tests.lab.topology import LabError

COLUMNS = 86
TABLE_S = 0.25  # seconds of the picture for one second of the demo
RESULT_S = 7.0  # seconds of the picture for the result of the checks
MAX_BYTES = 500 * 1024
CELL, LINE, SIZE, MARGIN = 8.4, 16, 14, 14  # pixels: width and height of a character's cell, height of the font, margin
GROUND, INK, GREEN, RED = "#0d1117", "#e6edf3", "#3fb950", "#f85149"

Screen = tuple[float, list[str]]  # seconds, lines


def lines_of(shown: RenderableType) -> list[str]:
    """What a terminal of COLUMNS shows, without colours."""
    console = Console(file=io.StringIO(), record=True, width=COLUMNS)
    console.print(shown)
    return [line.rstrip() for line in console.export_text().splitlines()]


def runs(screens: list[Screen]) -> Iterator[tuple[int, float, float, str]]:
    """(row, from, to, text): how long each text stands in each row. The times of one row do not overlap."""
    ends = list(itertools.accumulate(seconds for seconds, _ in screens))
    for row in range(max(len(lines) for _, lines in screens)):
        texts = [lines[row] if row < len(lines) else "" for _, lines in screens]
        for text, group in itertools.groupby(range(len(screens)), key=lambda index, texts=texts: texts[index]):
            members = list(group)
            if text.strip():
                yield row, ends[members[0]] - screens[members[0]][0], ends[members[-1]], text


def draw(screens: list[Screen], title: str) -> str:
    """An SVG that shows the screens one after another, again and again; without animation, the last one."""
    whole = sum(seconds for seconds, _ in screens)
    rows = max(len(lines) for _, lines in screens)
    width, height = COLUMNS * CELL + 2 * MARGIN, rows * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" role="img" '
        f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{SIZE}" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
    ]
    for row, begin, end, text in runs(screens):
        indent = len(text) - len(text.lstrip())
        text = text.strip()
        colour = f' fill="{GREEN}"' if text.startswith("ok ") else f' fill="{RED}"' if text.startswith("FAIL ") else ""
        place = f'x="{MARGIN + indent * CELL:.1f}" y="{MARGIN + row * LINE + SIZE}" textLength="{len(text) * CELL:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve"'
        shown = ""
        if begin > 0 or end < whole:
            hidden = "" if end >= whole else ' visibility="hidden"'
            times = f"0;{begin / whole:.4f};{min(end / whole, 1):.4f}"
            shown = f'<animate attributeName="visibility" calcMode="discrete" values="hidden;visible;hidden" keyTimes="{times}" dur="{whole:.2f}s" repeatCount="indefinite"/>'
            place += hidden
        out.append(f"<text {place}{colour}>{escape(text)}{shown}</text>")
    return "\n".join([*out, "</svg>"]) + "\n"


def screens_of(demo: Demo) -> list[Screen]:
    """The screens of a demo that has run."""
    head = ["# make demo", f"SIP server: {demo.sip_server}   relay: {demo.relay}   data plane: {demo.data_plane}", ""]
    tables = [lines_of(table) for _, table in demo.shown]
    results = [f"  {'ok  ' if held else 'FAIL'} {text}" for text, held, _ in demo.checks]
    return [*((TABLE_S, head + table) for table in tables), (RESULT_S, [*head, *tables[-1], "", *results])]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="demo_picture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--sip-server", default="auto")
    parser.add_argument("--relay", default="auto")
    options = parser.parse_args(argv)
    demo = Demo(Console(soft_wrap=True), options.sip_server, options.relay)
    try:
        demo.run()
    except LabError as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    if not demo.ok:
        print(f"a check of the demo failed: {options.file} stays as it is", file=sys.stderr)
        return 1
    picture = draw(screens_of(demo), "make demo")
    if len(picture.encode()) > MAX_BYTES:
        print(f"the picture has {len(picture.encode())} bytes, more than {MAX_BYTES}: {options.file} stays as it is", file=sys.stderr)
        return 1
    options.file.write_text(picture, encoding="utf-8")
    print(f"{options.file}: {len(picture.encode()):,} bytes, {len(demo.shown)} tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
