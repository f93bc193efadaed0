"""One self-contained HTML page: headings, paragraphs, tables and plots as inline SVG; nothing is fetched from elsewhere."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "bench", "svg.fonttype": "path"})
from matplotlib import pyplot

COLOURS = {
    "rtpproxy": "#b2182b", "rtpengine": "#ef8a62", "siphon-rtp": "#fdb863", "builtin": "#998ec3", "nftables": "#4393c3", "forward": "#777777", "shunt": "#1b7837", "direct": "#bbbbbb", "redirect": "#111111",
}  # fmt: skip
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 14px; } th, td { border: 1px solid #ddd; padding: .25rem .6rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } th { background: #f4f4f4; }
.missed { background: #fde2e0; } .met { background: #e3f3e3; } .remark { background: #fff4d6; border-left: 4px solid #e0a800; padding: .5rem 1rem; }
figure { margin: 1rem 0; } figcaption { font-size: 13px; color: #555; } svg { max-width: 100%; height: auto; }
"""


TARGET_HEAD = ("target", "wanted", "found", "")


def target_rows(results: dict[str, Any]) -> list[list[str]]:
    """Targets beside what was found; `wanted` – is a figure that has no target."""
    verdicts = {True: "met", False: "MISSED", None: "not measured"}
    return [[row["target"], row["wanted"], row["found"], "" if row["wanted"] == "–" else verdicts[row["met"]]] for row in results["targets"]]


def range_text(one: dict[str, Any], digits: int = 0, scale: float = 1.0) -> str:
    """A median with the least and the most in brackets."""
    return f"{one['median'] / scale:,.{digits}f} ({one['least'] / scale:,.{digits}f}–{one['most'] / scale:,.{digits}f})"


class Page:
    """Collects the parts of a page; text() is the page."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []

    def part(self, text: str) -> None:
        self._parts.append(f"<h1>{html.escape(text)}</h1>")

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def block(self, text: str) -> None:
        """Text as it was printed."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def remark(self, text: str) -> None:
        self._parts.append(f'<p class="remark">{html.escape(text)}</p>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]], classes: Sequence[str] = ()) -> None:
        """classes: one for each row, or none at all."""
        lines = ["<table><tr>" + "".join(f"<th>{html.escape(str(cell))}</th>" for cell in head) + "</tr>"]
        for n, row in enumerate(rows):
            mark = f' class="{classes[n]}"' if n < len(classes) and classes[n] else ""
            lines.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>")
        self._parts.append("\n".join(lines) + "</table>")

    def targets(self, rows: Sequence[Sequence[str]]) -> None:
        """The table of targets, met and missed marked."""
        self.table(TARGET_HEAD, rows, [{"met": "met", "MISSED": "missed"}.get(row[3], "") for row in rows])

    @contextmanager
    def plot(self, caption: str, *, columns: int = 1, height: float = 3.2) -> Iterator[Any]:
        """Yields the axes (a list of them for several columns); what was drawn becomes inline SVG."""
        figure, axes = pyplot.subplots(1, columns, figsize=(9.0, height), layout="constrained")
        try:
            yield axes if columns == 1 else list(axes)
            room = io.StringIO()
            figure.savefig(room, format="svg", metadata={"Date": None, "Creator": None})
            text = room.getvalue()
            self._parts.append(f"<figure>{text[text.index('<svg') :]}<figcaption>{html.escape(caption)}</figcaption></figure>")
        finally:
            pyplot.close(figure)

    def facts(self, facts: dict[str, Any]) -> None:
        """Machine, versions and commit."""
        machine = facts["machine"]
        cpu = f"{machine['cpu']}, {machine['cores']} cores" + (" of a virtual machine" if machine["virtual"] else "")
        rows = [
            ("commit", facts["commit"]), ("started", facts["started"]), ("profile", facts["profile"]), ("CPU", cpu),
            ("memory", f"{machine['memory_mib']:,} MiB"), ("system", f"{machine['system']}, Linux {machine['kernel']}"),
            ("in use by others before", f"{facts['busy_before']:.1%} of all cores"),
            *((name, version) for name, version in facts["versions"].items()), *(("mitigation: " + name, text) for name, text in machine["mitigations"].items()),
        ]  # fmt: skip
        self.heading("Machine and versions")
        self.table(("", ""), rows)

    def text(self) -> str:
        body = "\n".join(self._parts)
        title = html.escape(self._title)
        head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{title}</h1>\n{body}\n</body></html>\n'


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def heading_line(facts: dict[str, Any]) -> str:
    """What a log entry begins with: date, commit, machine."""
    machine = facts["machine"]
    kind = "cores of a virtual machine" if machine["virtual"] else "cores"
    where = f"{machine['cpu']}, {machine['cores']} {kind}, {machine['system']}, Linux {machine['kernel']}"
    return f"{facts['started'][:10]}, commit {facts['commit']}, {facts['profile']} profile; {where}; {facts['busy_before']:.1%} of all cores in use before"
