"""A relay, and phones."""

from __future__ import annotations

import pytest

from tests.relay_daemon.phone import Phone
from tests.relay_daemon.process import Relay


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
