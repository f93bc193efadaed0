"""The package, the manual, the units, and what an upgrade relies on."""
