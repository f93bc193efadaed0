"""The systemd units as packaging/units.sh writes them, and what they say."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.name.removesuffix(".in") for path in (ROOT / "packaging/systemd").glob("*.service.in"))


def settings(unit: Path) -> dict[str, str]:
    """A unit's settings, the last of each name."""
    lines = (line.strip() for line in unit.read_text(encoding="utf-8").splitlines())
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def write(folder: Path, prefix: str) -> list[Path]:
    """All units for a prefix."""
    subprocess.run([ROOT / "packaging/units.sh", prefix, folder], check=True)
    return [folder / name for name in NAMES]
