"""`make bench-mixer`: what mixing costs, into build/bench/mixer/results.json; each part adds its own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "build/bench/mixer/results.json"


def add(figures: dict[str, Any]) -> None:
    """Put figures into the results, beside those of other parts."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | figures, indent=1, sort_keys=True) + "\n")
