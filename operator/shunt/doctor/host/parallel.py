"""Work that may take long, beside other work, with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from shunt.doctor.facts import Unknown
from shunt.errors import plain

T = TypeVar("T")


class Later(Generic[T]):
    """A call in a thread of its own. What takes too long is left behind and ends with the process."""

    def __init__(self, call: Callable[[], T], limit_s: float) -> None:
        """limit_s: seconds from now after which the result counts as not known."""
        self._limit_s, self._deadline = limit_s, time.monotonic() + limit_s
        self._result: T | Unknown = Unknown("the check itself has failed")
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._result = call()
        except (OSError, ValueError) as error:
            self._result = Unknown(plain(error))
        except (LookupError, TypeError, AttributeError) as error:
            self._result = Unknown(f"an answer that this version cannot read: {plain(error)}")

    def result(self) -> T | Unknown:
        """What the call returned; Unknown where the operating system refused, or the time is up."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        return self._result if not self._thread.is_alive() else Unknown(f"no result within {self._limit_s:g} s")
