"""The polynomials of hashed builds: that each site has its own, and what an attacker who knows an entry can do with and without it."""

from __future__ import annotations

import itertools
import json
import re
import stat
from pathlib import Path

import pytest

from shunt.net import Endpoint, FiveTuple
from tests.p4.program import GENERATED, P4, compile_p4, polynomial_p4
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


@pytest.mark.parametrize("name", ["hash48-own", "hash32-own"])
def test_the_compiler_takes_polynomials_in_koopmans_notation(name: str) -> None:
    """The CRC's polynomial, computed from the matrix that the compiler wrote, is the one whose irreducibility counts."""
    given = int(re.search(rf'"{name}\.tofino1.*POLYNOMIAL": "(\w+)"', (P4 / "generate.py").read_text())[1], 16)
    assert function(name, "relay6").recurrence(reflected=name.startswith("hash32")) == polynomial_p4.of_crc(given)


@pytest.mark.parametrize("key", polynomial_p4.DEGREES)
def test_a_sites_crc_is_irreducible_and_of_the_full_degree(key: str) -> None:
    degree = polynomial_p4.DEGREES[key]
    for _ in range(20):
        drawn = polynomial_p4.draw(degree)
        assert drawn.bit_length() == degree, "a parameter of fewer bits is taken for a CRC of a lower degree"
        assert polynomial_p4.is_irreducible(polynomial_p4.of_crc(drawn))


def test_irreducible_is_what_has_no_factor() -> None:
    """Of degree 8 and below against all products; of degree 32, the CRC of IEEE 802.3; of degree 64, what was once taken for irreducible."""

    def product(a: int, b: int) -> int:
        return 0 if b == 0 else (a if b & 1 else 0) ^ product(a << 1, b >> 1)

    for degree in (4, 8):
        composite = {product(a, b) for a, b in itertools.product(range(2, 1 << degree), repeat=2)}
        for polynomial in range(1 << degree, 2 << degree):
            assert polynomial_p4.is_irreducible(polynomial) == (polynomial not in composite)
    assert polynomial_p4.is_irreducible(0x104C11DB7)
    assert not polynomial_p4.is_irreducible(0x104C11DB6)
    assert not polynomial_p4.is_irreducible(0x11C639F96F1749D7F)


def test_a_site_draws_once_and_keeps_it_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "made" / "polynomials.json"
    mine = polynomial_p4.of_site(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert polynomial_p4.of_site(file) == mine
    assert polynomial_p4.of_site(tmp_path / "other.json") != mine
    assert polynomial_p4.renew(file) == polynomial_p4.of_site(file) != mine
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and list(file.parent.iterdir()) == [file]
    file.chmod(0o644)
    with pytest.raises(ValueError, match="readable by others"):
        polynomial_p4.of_site(file)


@pytest.mark.parametrize("text", ['{"hash48": "0x1", "hash32": "0x82608edb"}', '{"hash32": "0x82608edb"}', '{"hash48": "0x8e31cfcb78ba4ebf", "hash32": "0x82608edb"}'])
def test_a_file_with_another_polynomial_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "polynomials.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ValueError, match=str(file)):
        polynomial_p4.of_site(file)


# A compiler that leaves the program, the polynomial in it, in many files and many ways of writing; and its command line.
_TALKATIVE = r"""#!/bin/sh
for word; do given=$word; done
case "$*" in *--version*) echo 1; exit;; *" -E "*) cat "$given"; exit;; esac
while [ "$1" != -o ]; do shift; done
out=$2
mkdir -p $out/pipe
echo "$0 $*" > $out/arguments
number=$(sed -n 's/.*POLYNOMIAL 0x//p' "$given")
cp "$given" $out/relay.p4pp
echo "crc_rev(0x$(echo $number | tr a-f A-F))" > $out/pipe/relay.bfa
python3 -c "n = int('$number', 16); print(n, file=open('$out/manifest.json', 'w')); print(hex(2 * n + 1), file=open('$out/frontend-ir.json', 'w'))"
echo matrix > $out/pipe/context.json
%s
"""


def talkative(folder: Path, more: str = "") -> str:
    compiler = folder / "bf-p4c"
    compiler.write_text(_TALKATIVE % more)
    compiler.chmod(0o755)
    return str(compiler)


@pytest.mark.parametrize("key", polynomial_p4.DEGREES)
def test_no_file_but_the_compilers_own_input_has_the_sites_polynomial(key: str, tmp_path: Path) -> None:
    drawn, out = polynomial_p4.draw(polynomial_p4.DEGREES[key]), tmp_path / "all" / "x"
    build = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"}, polynomial=drawn)
    reason, _ = compile_p4.make(talkative(tmp_path), build, out)
    assert reason is None
    (given,) = compile_p4.containing(drawn, tmp_path)
    assert given == out / "secret" / "relay.p4" and stat.S_IMODE(given.stat().st_mode) == 0o600
    assert {path.name for path in out.rglob("*") if path.is_file()} == {"relay.p4", "arguments", "context.json", "compiler.log", "made.json", "relay.conf"}
    assert f"{drawn:x}" not in (out / "arguments").read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (out, out / "secret")] == [0o700, 0o700]
    assert stat.S_IMODE((out / "pipe" / "context.json").stat().st_mode) == 0o600
    out.chmod(0o755)
    compile_p4.make(talkative(tmp_path), build, out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o700, "a build that is there is closed too"


def test_a_loaded_file_with_the_polynomial_fails_the_build(tmp_path: Path) -> None:
    build = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"}, polynomial=polynomial_p4.draw(64))
    reason, _ = compile_p4.make(talkative(tmp_path, 'cp "$given" $out/bfrt.json'), build, tmp_path / "x")
    assert reason == "bfrt.json contains the site's polynomial"


def test_reports_do_not_name_the_polynomial() -> None:
    build = compile_p4.Build("x", "tofino", {"RELAY_SIZE": "9"}, polynomial=0xABCDEF01)
    assert "abcdef01" not in " ".join(compile_p4._command("bf-p4c", build)).lower()
    assert "POLYNOMIAL" not in json.dumps(dict(build.options))


def test_new_polynomials_come_with_what_to_restart(tmp_path: Path) -> None:
    said = compile_p4.restart([tmp_path / "hash48-tofino1"])
    assert str(tmp_path / "hash48-tofino1" / "relay.conf") in said
    assert said.index("bf_switchd") < said.index("setup.py") < said.index("agent")
