"""What all sections of the configuration have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One section: unknown keys are errors, and no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Location = tuple[str | int, ...]
"""Where a key is: section, key, place in a list and so on."""
