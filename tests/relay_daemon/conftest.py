"""The relay's binary, a relay, and phones."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.relay_daemon.phone import Phone
from tests.relay_daemon.process import ROOT, Relay


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """Build it, unless the environment names one."""
    if "SHUNT_RELAY" not in os.environ:
        subprocess.run(["make", "--silent", "daemons"], cwd=ROOT, check=True)


@pytest.fixture
def relay():
    with Relay() as relay:
        yield relay


@pytest.fixture
def phone():
    phones: list[Phone] = []

    def make(ip: str, port: int = 0, ssrc: int = 0x11111111) -> Phone:
        phones.append(Phone(ip, port, ssrc))
        return phones[-1]

    yield make
    for each in phones:
        each.sock.close()
