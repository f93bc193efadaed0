"""The P4 program's folder, and its compile drivers as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

P4 = Path(__file__).resolve().parents[2] / "p4"
GENERATED = P4 / "generated"


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"p4_{name}", P4 / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


polynomial_p4 = _module("polynomial")
sys.modules.setdefault("polynomial", polynomial_p4)
compile_p4 = _module("compile")
sys.modules.setdefault("compile", compile_p4)  # as the scripts name it to each other
largest_p4 = _module("largest")
