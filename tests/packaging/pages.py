"""The pages that a reader follows command by command: README and the start pages, taken apart into blocks and commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/start/install.md", "docs/start/opensips.md", "docs/start/kamailio.md", "docs/start/rtpengine.md")
# `sh` is run line by line, `yaml` and `ini` are files, the other two are lines of a SIP server's configuration.
LANGUAGES = {"sh", "yaml", "ini", "opensips", "kamailio"}
PROGRAMS = ("apt", "cp", "ethtool", "kamailio", "make", "opensips", "rtpengine", "rtpproxy", "sed", "shunt", "systemctl")

# Commands that the run on a clean host (test_pages_on_a_host.py) leaves out, with the reason.
NOT_RUN = {"make test": "the run belongs to the tests"}
# Commands in running text that the run tries in addition to the blocks.
IN_TEXT = {"shunt why CALL-ID": "for the call that the run has placed"}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(/etc/[^`]+)`:\n*$")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    file: str  # the path that the paragraph before the block names at its end, or ""

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip()]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        named = _FILE.search(text[: match.start()])
        found.append(Block(match[1], match[2], named[1] if named else ""))
    return found


def commands(page: str) -> list[str]:
    """Every line of the page's `sh` blocks, in order."""
    return [line for block in blocks(page) if block.language == "sh" for line in block.lines]


def text_of(page: str) -> str:
    """The page without its blocks."""
    return _BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))


def commands_in_text(page: str) -> list[str]:
    """Every command with arguments that stands in the page's running text."""
    return [code for code in _CODE.findall(text_of(page)) if " " in code and code.split()[0] in PROGRAMS]
