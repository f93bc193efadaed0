"""The hash under which a Tofino stores a 5-tuple (table property proxy_hash), as the compiler writes it into context.json.

Every hash unit of the chip is a matrix over GF(2): each bit of the result is the XOR of some bits of the key and a seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shunt.net import FiveTuple

_PARTS = ("src_addr", "dst_addr", "src_port", "dst_port")  # in the order of the relay tables' keys


class LinearHash:
    """A hash over GF(2) of a key of `size` bytes: the seed, XORed with one column for every bit that is set in the key.

    columns has one number for each bit of the key, from the first byte's most significant bit on.
    """

    def __init__(self, bits: int, seed: int, columns: Sequence[int]) -> None:
        self.bits, self.seed, self.columns = bits, seed, tuple(columns)
        self.size = len(columns) // 8

    def of(self, key: FiveTuple) -> int:
        """The hash of a 5-tuple. Raises ValueError for one of another IP version."""
        src, dst = key
        raw = src.addr + dst.addr + src.port.to_bytes(2, "big") + dst.port.to_bytes(2, "big")
        if len(raw) != self.size:
            raise ValueError(f"{key} has {len(raw)} bytes, not {self.size}")
        number, value = int.from_bytes(raw, "big"), self.seed
        for column in reversed(self.columns):
            value ^= column * (number & 1)
            number >>= 1
        return value

    def recurrence(self, *, reflected: bool = False) -> int:
        """The polynomial of the CRC that this hash is part of, or a factor of it; 0 where the key is too short to tell.

        The columns of a CRC, from the key's last bit on, are x^n modulo its polynomial. Each bit of them is a linear recurrence, of which the
        algorithm of Berlekamp and Massey finds the shortest. reflected: the CRC takes each byte from its lowest bit on.
        """
        order = range(len(self.columns) - 1, -1, -1)
        columns = [self.columns[bit ^ 7 if reflected else bit] for bit in order]
        found = max((_shortest_recurrence([column >> bit & 1 for column in columns]) for bit in range(self.bits)), key=int.bit_length)
        return found if 2 * (found.bit_length() - 1) < len(columns) else 0

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


def _shortest_recurrence(bits: Sequence[int]) -> int:
    """The characteristic polynomial of the shortest linear recurrence over GF(2) that makes these bits."""
    connection, before, length, since = 1, 1, 0, 1
    for at, bit in enumerate(bits):
        wrong = bit
        for back in range(1, length + 1):
            wrong ^= connection >> back & bits[at - back]
        if not wrong & 1:
            since += 1
        elif 2 * length <= at:
            connection, before, length, since = connection ^ before << since, connection, at + 1 - length, 1
        else:
            connection ^= before << since
            since += 1
    return int(f"{connection:b}".zfill(length + 1)[::-1], 2)


def from_context(context: bytes | str) -> dict[str, tuple[LinearHash, ...]]:
    """The hashes of a compiled pipeline's 5-tuple tables, by the tables' names; () for one that stores its keys as they are.

    context is the compiler's context.json, whole or reduced to tables, match_key_fields and the stage tables' proxy_hash_function.
    A table in several stages has one hash, unless the compiler chose another for each.
    """
    found: dict[str, tuple[LinearHash, ...]] = {}
    for table in json.loads(context)["tables"]:
        lowest, size = _layout({field["name"]: field for field in table.get("match_key_fields") or ()})
        if size:
            stages = (table.get("match_attributes") or {}).get("stage_tables") or ()
            hashes = [_of_stage(stage, lowest, size) for stage in stages if stage.get("stage_table_type") == "proxy_hash_match"]
            found[table["name"]] = tuple({hash_.rows(): hash_ for hash_ in hashes}.values())
    return found


def _layout(fields: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, int], int]:
    """Where each field's lowest bit is in the key's columns, and how many columns there are; 0 where the fields are no 5-tuple."""
    by_part = {name.rpartition(".")[2]: name for name in fields}
    lowest: dict[str, int] = {}
    place = 0
    if len(fields) == len(_PARTS) and set(by_part) == set(_PARTS):
        for part in _PARTS:
            place += int(fields[by_part[part]]["bit_width"])
            lowest[by_part[part]] = place - 1
    return lowest, place


def _of_stage(stage: Mapping[str, Any], lowest: Mapping[str, int], size: int) -> LinearHash:
    """The hash of one stage table. The hash unit has more bits than the key's; those in use keep their order."""
    bits = sorted(stage["proxy_hash_function"]["hash_bits"], key=lambda bit: int(bit["hash_bit"]))
    columns, seed = [0] * size, 0
    for place, bit in enumerate(bits):
        seed |= int(bit["seed"]) << place
        for source in bit["bits_to_xor"]:
            columns[lowest[source["field_name"]] - int(source["field_bit"])] ^= 1 << place
    return LinearHash(len(bits), seed, columns)
