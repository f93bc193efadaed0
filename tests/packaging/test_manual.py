"""The manual pages and documents: one source, up to date, and right in a terminal."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def manual() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manual", ROOT / "packaging/manual.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_documents_are_up_to_date(manual: ModuleType) -> None:
    for path, text in manual.documents(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make manual"
        assert "### shunt drain" in text


def test_every_key_of_the_configuration_is_there(manual: ModuleType) -> None:
    keys = {key: (meaning, default) for key, meaning, default in manual.keys()}
    assert all(meaning for meaning, _ in keys.values())
    assert keys["relays[].media[].address"][1] == "required"
    assert keys["data_plane.tls.ca_file"][0] and keys["switch.ports[].mac"][0]
    assert keys["softswitch.capacity"][1] == "default: 262144"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("page", ["man_command", "man_configuration"])
def test_pages_are_right_in_a_terminal(manual: ModuleType, page: str) -> None:
    done = subprocess.run(["groff", "-ww", "-man", "-Tascii", "-P-c", "-rLL=100n"], input=getattr(manual, page)(), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    shown = subprocess.run(["col", "-b"], input=done.stdout, capture_output=True, text=True, check=True).stdout.expandtabs()
    assert max(map(len, shown.splitlines())) <= 100
    assert "\\" not in shown and "`" not in shown
    assert shown.index("NAME") < shown.index("DESCRIPTION") < shown.index("FILES") < shown.index("SEE ALSO")
    if page == "man_command":
        for name, command, context in manual.commands():
            assert manual.usage(name, command, context) in shown
            for written, _ in manual.options(command, context):
                assert written in shown
        assert "EXIT STATUS" in shown and "3      The agent cannot be reached." in shown
