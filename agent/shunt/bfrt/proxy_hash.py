"""The hash under which a Tofino stores a 5-tuple (table property proxy_hash), computed as the compiled program does.

Every hash unit of the chip is a matrix over GF(2): each bit of the result is the XOR of some bits of the
key and a seed. The compiler writes the matrix into context.json, bit by bit, and the driver computes the
hash from there; so does this module. A CRC is such a matrix too, so the builds that p4/relay.p4 knows can
also be had without the file. Pure functions without I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunt.net import FiveTuple

PARTS = ("src_addr", "dst_addr", "src_port", "dst_port")
"""The 5-tuple's parts in the order of the relay tables' keys, which is the order in which a CRC takes them."""


class HashError(ValueError):
    """A context.json cannot be understood, which says what and where."""


@dataclass(frozen=True, slots=True)
class Crc:
    """A CRC as a P4 program defines it (extern CRCPolynomial), of which the low `bits` are used."""

    bits: int
    width: int
    polynomial: int
    reflected: bool
    initial: int
    final: int

    def of(self, message: bytes) -> int:
        """The hash of a message, by the bit-by-bit definition."""
        top, mask = 1 << self.width - 1, (1 << self.width) - 1
        value = self.initial
        for byte in message:
            if self.reflected:
                byte = int(f"{byte:08b}"[::-1], 2)
            for place in range(7, -1, -1):
                carry = bool(value & top) != bool(byte >> place & 1)
                value = value << 1 & mask ^ (self.polynomial if carry else 0)
        if self.reflected:
            value = int(f"{value:0{self.width}b}"[::-1], 2)
        return (value ^ self.final) & (1 << self.bits) - 1


HASH32 = Crc(32, 32, 0x04C11DB7, True, 0xFFFFFFFF, 0xFFFFFFFF)
"""RELAY_KEY=hash32: HashAlgorithm_t.CRC32."""
HASH48 = Crc(48, 63, 0x05E1C3D753D46D27, False, 0, 0)
"""RELAY_KEY=hash48: the low 48 bits of what bf-p4c makes of the CRC-64 polynomial in p4/include/arch_tna.p4.

It takes the 64 bits for all terms but the last (Koopman's notation, as its own CRC-32's 82608edb is), so the
polynomial becomes 85e1c3d753d46d27, whose highest term is x^63.
"""


class LinearHash:
    """A hash over GF(2) of a key of `size` bytes: the seed, XORed with one column for every bit that is set in the key.

    columns has one number for each bit of the key, from the first byte's most significant bit on.
    """

    __slots__ = ("bits", "size", "seed", "columns", "_tables")

    def __init__(self, bits: int, seed: int, columns: Sequence[int]) -> None:
        self.bits = bits
        self.size = len(columns) // 8
        self.seed = seed
        self.columns = tuple(columns)
        self._tables = [_table(columns[start : start + 8]) for start in range(0, len(columns), 8)]

    @classmethod
    def of_crc(cls, crc: Crc, size: int) -> LinearHash:
        """The same function as a CRC of messages of `size` bytes."""
        seed = crc.of(bytes(size))
        columns = [crc.of((1 << 8 * size - 1 - bit).to_bytes(size, "big")) ^ seed for bit in range(8 * size)]
        return cls(crc.bits, seed, columns)

    def of_bytes(self, key: bytes) -> int:
        """The hash of a key's bytes. Raises ValueError for another length."""
        value = self.seed
        for table, byte in zip(self._tables, key, strict=True):
            value ^= table[byte]
        return value

    def of(self, key: FiveTuple) -> int:
        """The hash of a 5-tuple. Raises ValueError for one of another IP version."""
        src, dst = key
        if self.size == 12:
            # Written out, for it is on the way of every entry.
            t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11 = self._tables
            a, b, c, d = src.addr
            e, f, g, h = dst.addr
            p, q = src.port, dst.port
            return self.seed ^ t0[a] ^ t1[b] ^ t2[c] ^ t3[d] ^ t4[e] ^ t5[f] ^ t6[g] ^ t7[h] ^ t8[p >> 8] ^ t9[p & 255] ^ t10[q >> 8] ^ t11[q & 255]
        return self.of_bytes(src.addr + dst.addr + src.port.to_bytes(2, "big") + dst.port.to_bytes(2, "big"))

    def rows(self) -> tuple[int, ...]:
        """The matrix's rows in reduced echelon form: two hashes collide on the same keys exactly when these are equal."""
        echelon: list[int] = []
        for bit in range(self.bits):
            row = 0
            for column in self.columns:
                row = row << 1 | column >> bit & 1
            for other in echelon:
                row = min(row, row ^ other)
            if row:
                echelon = [min(other, other ^ row) if other >> row.bit_length() - 1 & 1 else other for other in echelon] + [row]
        return tuple(sorted(echelon))


def _table(columns: Sequence[int]) -> list[int]:
    """What each value of one byte of the key contributes."""
    table = [0]
    for column in reversed(columns):
        table += [value ^ column for value in table]
    return table


def distinct(hashes: Iterable[LinearHash]) -> tuple[LinearHash, ...]:
    """One of each that collide on the same keys."""
    return tuple({(hash_.size, hash_.rows()): hash_ for hash_ in hashes}.values())


def from_context(context: bytes | str) -> dict[str, tuple[LinearHash, ...]]:
    """The hashes of a compiled pipeline's 5-tuple tables, by the tables' names; () for one that stores its keys as they are.

    context is the compiler's context.json, whole or reduced to tables, match_key_fields and the stage
    tables' proxy_hash_function. A table in several stages has one hash, unless the compiler chose
    another for each. Raises HashError.
    """
    try:
        document = json.loads(context)
    except ValueError as error:
        raise HashError(f"context.json: {error}") from None
    found: dict[str, tuple[LinearHash, ...]] = {}
    try:
        for table in document["tables"]:
            name = table["name"]
            fields = {field["name"]: field for field in table.get("match_key_fields") or ()}
            layout = _layout(fields)
            if layout is None:
                continue
            stages = (table.get("match_attributes") or {}).get("stage_tables") or ()
            found[name] = distinct(_stage(name, stage, *layout) for stage in stages if stage.get("stage_table_type") == "proxy_hash_match")
    except (KeyError, TypeError, AttributeError) as error:
        raise HashError(f"context.json: {type(error).__name__}: {error}") from None
    return found


def _layout(fields: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, int], int] | None:
    """Where each field's lowest bit is in the key's columns, and how many columns there are; None where the fields are no 5-tuple."""
    by_part = {name.rpartition(".")[2]: name for name in fields}
    if len(fields) != 4 or set(by_part) != set(PARTS):
        return None
    last, place = {}, 0
    for part in PARTS:
        name = by_part[part]
        place += int(fields[name]["bit_width"])
        last[name] = place - 1
    return last, place


def _stage(name: str, stage: Mapping[str, Any], last: Mapping[str, int], count: int) -> LinearHash:
    """The hash of one stage table. The hash unit has more bits than the key's; those in use keep their order."""
    bits = sorted(stage["proxy_hash_function"]["hash_bits"], key=lambda bit: int(bit["hash_bit"]))
    width = int(stage.get("proxy_hash_bit_width") or len(bits))
    if not bits or len(bits) != width:
        raise HashError(f"context.json: {name} has a hash of {width} bits, of which {len(bits)} are given")
    columns, seed = [0] * count, 0
    for place, bit in enumerate(bits):
        seed |= int(bit["seed"]) << place
        for source in bit["bits_to_xor"]:
            field = source["field_name"]
            if field not in last:
                raise HashError(f"context.json: {name} hashes {field}, which is not in its key")
            columns[last[field] - int(source["field_bit"])] ^= 1 << place
    return LinearHash(width, seed, columns)
