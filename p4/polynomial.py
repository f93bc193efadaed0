"""The polynomials of a site's hashed builds: drawn once, irreducible, kept where only their owner reads them.

A CRC is linear. Who knows its polynomial and one entry computes 5-tuples that meet the entry; who does not know it can only guess
(docs/security.md). What depends on the polynomial, the build's context.json, is as secret.

bf-p4c takes the POLYNOMIAL of a proxy hash in Koopman's notation: all terms but the last, which is always 1. The CRC's polynomial is
2 * POLYNOMIAL + 1.

    python p4/polynomial.py FILE    # draws new ones into FILE, in place of those there
"""

from __future__ import annotations

import json
import os
import secrets
import sys
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


def is_irreducible(polynomial: int) -> bool:
    """Rabin's test. polynomial: with all its terms; its degree: a power of two from 4 on."""
    degree, x = polynomial.bit_length() - 1, 0b10
    power = x
    for step in range(1, degree + 1):
        power = _squared(power, polynomial)
        if step == degree // 2:
            a, b = polynomial, power ^ x
            while b:
                a, b = b, _reduced(a, b)
            if a != 1:
                return False
    return power == x


def of_crc(parameter: int) -> int:
    """The polynomial of the CRC that bf-p4c makes of a POLYNOMIAL."""
    return parameter << 1 | 1


def draw(degree: int) -> int:
    """The POLYNOMIAL of a random irreducible polynomial of this degree. One number in about `degree` / 2 odd ones is."""
    while not is_irreducible(polynomial := 1 << degree | secrets.randbits(degree) | 1):
        pass
    return polynomial >> 1


def _is_sound(parameter: int, degree: int) -> bool:
    return parameter.bit_length() == degree and is_irreducible(of_crc(parameter))


def renew(path: Path) -> dict[str, int]:
    """Draw a site's polynomials, by RELAY_KEY, and keep them in a file that only its owner reads, in place of what it has."""
    drawn = {key: draw(degree) for key, degree in DEGREES.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({key: f"{value:#x}" for key, value in drawn.items()}, file)
    fresh.replace(path)
    return drawn


def of_site(path: Path) -> dict[str, int]:
    """The site's polynomials by RELAY_KEY, from a file that is made where it is not there. Raises ValueError for a file that has others, or that others read."""
    try:
        found = {key: int(value, 16) for key, value in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return renew(path)
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} is readable by others than its owner: draw new polynomials (make p4-polynomial)")
    for key, degree in DEGREES.items():
        if not _is_sound(found.get(key, 0), degree):
            raise ValueError(f"{path}: the CRC of {key} is not of an irreducible polynomial of degree {degree}: draw new ones (make p4-polynomial)")
    return found


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: polynomial.py FILE", file=sys.stderr)
        return 2
    renew(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
