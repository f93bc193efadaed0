"""The systemd units as they are installed, and what they say."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "packaging/systemd").glob("*.service.in"))


def settings(source: Path) -> dict[str, str]:
    """A unit's settings, the last of each name."""
    lines = (line.strip() for line in source.read_text(encoding="utf-8").splitlines())
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def write(folder: Path, prefix: str) -> list[Path]:
    """All units for a prefix."""
    made = []
    for source in SOURCES:
        made.append(folder / source.name.removesuffix(".in"))
        made[-1].write_text(source.read_text(encoding="utf-8").replace("@PREFIX@", prefix), encoding="utf-8")
    return made
