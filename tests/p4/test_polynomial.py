"""The polynomials of hashed builds: that each site has its own, and what an attacker who knows an entry can do with and without it."""

from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.p4.program import GENERATED, compile_p4, polynomial_p4
from tests.tools.bfrt.proxy_hash import LinearHash, from_context

ENTRY4 = FiveTuple(Endpoint.of("198.51.100.7", 40_000), Endpoint.of("203.0.113.10", 35_000))
ENTRY6 = FiveTuple(Endpoint.of("2001:db8:1::7", 40_000), Endpoint.of("2001:db8:ff::10", 35_000))


def function(name: str, table: str) -> LinearHash:
    """The hash of a table as the compiler wrote it."""
    return from_context((GENERATED / f"{name}.tofino1.context.json").read_bytes())[f"Ingress.{table}"][0]


def packed(key: FiveTuple) -> int:
    return int.from_bytes(key.src.addr + key.dst.addr + key.src.port.to_bytes(2, "big") + key.dst.port.to_bytes(2, "big"), "big")


def unpacked(value: int, like: FiveTuple) -> FiveTuple:
    size = len(like.src.addr)
    raw = value.to_bytes(2 * size + 4, "big")
    ports = int.from_bytes(raw[-4:-2], "big"), int.from_bytes(raw[-2:], "big")
    return FiveTuple(Endpoint(raw[:size], ports[0]), Endpoint(raw[size : 2 * size], ports[1]))


def meets(hashed: LinearHash, entry: FiveTuple, own: FiveTuple, free: int) -> FiveTuple | None:
    """A 5-tuple with the hash of an entry, made from the attacker's own by changing bits of `free`; None if there is none."""
    base, size = packed(own), 8 * hashed.size
    rest = hashed.of(own) ^ hashed.of(entry)
    pivots: list[tuple[int, int]] = []  # a column, reduced by those before it, and the bits of the key that make it
    for bit in (bit for bit in range(size) if free >> bit & 1):
        column, made_of = hashed.columns[size - 1 - bit], 1 << bit
        for other, its in pivots:
            if column ^ other < column:
                column, made_of = column ^ other, made_of ^ its
        if column:
            pivots.append((column, made_of))
            pivots.sort(reverse=True)
    for column, made_of in pivots:
        if rest ^ column < rest:
            rest, base = rest ^ column, base ^ made_of
    return None if rest else unpacked(base, own)


ATTACKS = {
    # From an address of one's own, to any port of the relay's address.
    "hash32": ("relay", ENTRY4, FiveTuple(Endpoint.of("192.0.2.66", 0), ENTRY4.dst), 0xFFFF_FFFF),
    # From a /64 of one's own and any port, to the very port.
    "hash48": ("relay6", ENTRY6, FiveTuple(Endpoint.of("2001:db8:66::", 0), ENTRY6.dst), ((1 << 64) - 1) << 160 | 0xFFFF_0000),
}


@pytest.mark.parametrize("build", ATTACKS)
def test_who_knows_the_polynomial_meets_an_entry_and_who_does_not_misses(build: str) -> None:
    table, entry, own, free = ATTACKS[build]
    published, secret = function(build, table), function(f"{build}-own", table)
    computed = meets(published, entry, own, free)
    assert computed is not None and computed != entry and packed(computed) & ~free == packed(own) & ~free
    assert published.of(computed) == published.of(entry)
    assert secret.of(computed) != secret.of(entry)
    assert meets(secret, entry, own, free) is not None, "the secret is the polynomial, not the kind of function"


@pytest.mark.parametrize("build", ATTACKS)
def test_a_sites_own_function_is_as_good_as_the_published_one(build: str) -> None:
    table, _, _, _ = ATTACKS[build]
    published, secret = function(build, table), function(f"{build}-own", table)
    assert secret.rows() != published.rows()
    assert secret.bits == published.bits == len(secret.rows()), "every bit counts"


def test_irreducible_is_what_has_no_factor() -> None:
    """Of degree 8 and below against all products; of degree 32, the CRC of IEEE 802.3."""

    def product(a: int, b: int) -> int:
        return 0 if b == 0 else (a if b & 1 else 0) ^ product(a << 1, b >> 1)

    for degree in (4, 8):
        composite = {product(a, b) for a, b in itertools.product(range(2, 1 << degree), repeat=2)}
        for tail in range(1 << degree):
            assert polynomial_p4.is_irreducible(tail, degree) == ((tail | 1 << degree) not in composite)
    assert polynomial_p4.is_irreducible(0x04C11DB7, 32)
    assert not polynomial_p4.is_irreducible(0x04C11DB6, 32)


def test_a_site_draws_once_and_keeps_it_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "made" / "polynomials.json"
    mine = polynomial_p4.of_site(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert polynomial_p4.of_site(file) == mine
    assert polynomial_p4.of_site(tmp_path / "other.json") != mine
    assert all(polynomial_p4.is_irreducible(mine[key], degree) for key, degree in polynomial_p4.DEGREES.items())


@pytest.mark.parametrize("text", ['{"hash48": "0x1", "hash32": "0x04c11db7"}', '{"hash32": "0x04c11db7"}', '{"hash48": "0x1b", "hash32": "0x104c11db7"}'])
def test_a_file_with_another_polynomial_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "polynomials.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=str(file)):
        polynomial_p4.of_site(file)


def test_the_compiler_is_given_the_sites_polynomial_and_no_report_is(tmp_path: Path) -> None:
    build = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"}, polynomial=0xABCDEF01)
    assert "POLYNOMIAL=0xabcdef01" in compile_p4._command("bf-p4c", build)
    assert "POLYNOMIAL" not in json.dumps(dict(build.options))
