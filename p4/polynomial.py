"""The polynomials of a site's hashed builds: drawn once, irreducible, kept where only their owner reads them.

A CRC is linear. Who knows its polynomial and one entry computes 5-tuples that meet the entry; who does not know it can only guess
(docs/security.md). What depends on the polynomial, the build's context.json, is as secret.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

# Degrees of the CRCs by RELAY_KEY; hash48 stores 48 bits of its 64.
DEGREES: Mapping[str, int] = {"hash48": 64, "hash32": 32}


def _reduced(value: int, modulus: int) -> int:
    """The remainder of one polynomial over GF(2) by another; bit n is the coefficient of x^n."""
    size = modulus.bit_length()
    while value.bit_length() >= size:
        value ^= modulus << value.bit_length() - size
    return value


def _squared(value: int, modulus: int) -> int:
    return _reduced(int("".join(f"{digit}0" for digit in f"{value:b}")[:-1], 2), modulus)


def is_irreducible(polynomial: int, degree: int) -> bool:
    """Rabin's test. polynomial: without its leading term, as CRCs are written; degree: a power of two from 4 on."""
    modulus, x = polynomial | 1 << degree, 0b10
    power = x
    for step in range(1, degree + 1):
        power = _squared(power, modulus)
        if step == degree // 2:
            a, b = modulus, power ^ x
            while b:
                a, b = b, _reduced(a, b)
            if a != 1:
                return False
    return power == x


def draw(degree: int) -> int:
    """A random irreducible polynomial, without its leading term. One number in about `degree` / 2 odd ones is.

    The term below the leading one is there too: bf-p4c takes a polynomial of 32 bits without it for one of fewer, and of its hash not every bit counts.
    """
    while not is_irreducible(polynomial := secrets.randbits(degree) | 1 | 1 << degree - 1, degree):
        pass
    return polynomial


def of_site(path: Path) -> dict[str, int]:
    """The site's polynomials by RELAY_KEY, from a file that is made where it is not there. Raises ValueError for a file that has others."""
    try:
        found = {key: int(value, 16) for key, value in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        found = {key: draw(degree) for key, degree in DEGREES.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({key: f"{value:#x}" for key, value in found.items()}, file)
    for key, degree in DEGREES.items():
        value = found.get(key, 0)
        if value.bit_length() != degree or not value & 1 or not is_irreducible(value, degree):
            raise ValueError(f"{path}: {key} is not an irreducible polynomial of degree {degree} with the term below the leading one")
    return found
