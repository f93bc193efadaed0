"""The schema files of the softswitch: what it serves, read without a running process."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.tools.bfrt.schema import Schema

FOLDER = Path(__file__).resolve().parents[2] / "softswitch/schema"


@cache
def document(*names: str) -> dict[str, Any]:
    """The tables and learn filters of schema files (`relay`, `conference`, `fixed`), as one document. Sizes are those of the files."""
    first, *further = (json.loads((FOLDER / f"{name}.json").read_text()) for name in names)
    for other in further:
        for part in ("tables", "learn_filters"):
            first[part] = [*first.get(part, ()), *other.get(part, ())]
    return first


@cache
def load(*, conferences: bool = False, fixed: bool = True) -> Schema:
    """The served schema; conferences: as a softswitch with room for them serves it; fixed: with the target's own tables."""
    documents = [document("relay", "conference") if conferences else document("relay")]
    if fixed:
        documents.append(document("fixed"))
    return Schema.parse(*(json.dumps(one) for one in documents))
