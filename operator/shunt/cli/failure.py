"""How a command fails: a message on standard error and an exit code."""

from __future__ import annotations

from typing import Any

import click

EXIT_PROBLEM, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


class Failure(click.ClickException):
    """Ends the command with a message on standard error and an exit code."""

    def __init__(self, message: str, exit_code: int = EXIT_PROBLEM, status: int = 0) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it of the instance
        self.status = status

    def show(self, file: Any = None) -> None:
        click.echo(f"shunt: {self.message}", err=True)
