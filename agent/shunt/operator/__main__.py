"""`python -m shunt.operator -c FILE`: the same as `shunt operator -c FILE`."""

from __future__ import annotations

import sys

from shunt.cli.main import cli

if __name__ == "__main__":
    cli(prog_name="shunt", args=["operator", *sys.argv[1:]])
