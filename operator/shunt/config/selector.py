"""An operator's own function that says which layers a receiver gets: what it is called with, and how it is found."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple


class Estimate(NamedTuple):
    """What a receiver said: when (s), its estimate (bit/s), the rate of each decode target as it was then (bit/s, lowest first,
    all that lies below included), and the decode target that it was sent."""

    time: float
    bitrate: float
    rates: tuple[float, ...]
    target: int


# (decode target now, estimates before, oldest first, the new one) -> decode target
SelectDecodeTarget = Callable[[int, Sequence[Estimate], Estimate], int]

_SELECTOR_MODULE = "shunt_selector"  # what a file of an operator's is called as a module


def _from_file(path: str) -> ModuleType:
    """A file as a module: an installed agent looks for modules in its own folders alone. Raises ImportError, and whatever the file raises."""
    spec = importlib.util.spec_from_file_location(_SELECTOR_MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file: its name does not end in .py")
    module = sys.modules[_SELECTOR_MODULE] = importlib.util.module_from_spec(spec)  # dataclasses in it look themselves up there
    spec.loader.exec_module(module)
    return module


def load_selector(name: str) -> SelectDecodeTarget:
    """The function that a configuration names as "module:function" or "/path/file.py:function". Raises ValueError when there is none such, or it does not work."""
    where, separator, attribute = name.rpartition(":")
    if not separator:
        raise ValueError(f"{name!r} is neither MODULE:FUNCTION nor /PATH/FILE.py:FUNCTION")
    try:
        module = _from_file(where) if where.startswith("/") else importlib.import_module(where)
    except ImportError as error:
        raise ValueError(f"{name}: {error}") from None
    except Exception as error:  # whatever the operator's own code raises
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from None
    function = getattr(module, attribute, None)
    if function is None:
        raise ValueError(f"{name}: {where} has no {attribute}")
    if not callable(function):
        raise ValueError(f"{name} is not a function")
    chosen: SelectDecodeTarget = function
    trial = Estimate(0.0, 1e6, (1e5, 2e5, 4e5), 0)
    try:
        answer = chosen(0, (), trial)
    except Exception as error:  # whatever the operator's own code raises
        raise ValueError(f"{name} on a first estimate: {type(error).__name__}: {error}") from None
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise ValueError(f"{name} answers {answer!r}, not a decode target")
    return chosen
