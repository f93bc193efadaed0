"""Fixed-layout BF Runtime messages without protobuf objects, which cost ten times as much to fill in and to read.

A relay entry always has the same fields of the same widths, so its serialised update differs from the
next one only in the values. A Template holds everything else and packs; a Layout, learned from a message
as it came, unpacks. Both deal in ordinary protobuf, and tests hold them against the generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

_LEN = 2


class Slot:
    """A place for a value: `form` is a struct format ("4s", "H", …) in network order."""

    __slots__ = ("form", "size")

    def __init__(self, form: str) -> None:
        self.form = form
        self.size = struct.calcsize(">" + form)


Part = bytes | Slot


def varint(value: int) -> bytes:
    """A non-negative integer as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(tag: int, value: int) -> list[Part]:
    """A varint field; zero is left out, as proto3 does."""
    return [varint(tag << 3) + varint(value)] if value else []


def message(tag: int, *parts: Sequence[Part]) -> list[Part]:
    """A length-delimited field that holds the given parts."""
    inner = [part for group in parts for part in group]
    length = sum(len(part) if isinstance(part, bytes) else part.size for part in inner)
    return [varint(tag << 3 | _LEN) + varint(length), *inner]


def key_exact(field_id: int, slot: Slot) -> list[Part]:
    """TableKey.fields with an exact match."""
    return message(1, number(1, field_id), message(2, message(1, [slot])))


def data_stream(field_id: int, slot: Slot) -> list[Part]:
    """TableData.fields with a byte string."""
    return message(2, number(1, field_id), message(2, [slot]))


class Template:
    """A serialised message with slots; pack(values…) gives the bytes."""

    __slots__ = ("_struct", "_constants", "_slots", "size")

    def __init__(self, parts: Sequence[Part]) -> None:
        form = [">"]
        self._constants: list[bytes] = []
        constant = b""
        slots = 0
        for part in parts:
            if isinstance(part, bytes):
                constant += part
                continue
            # A constant (possibly empty) before every slot keeps pack() a plain interleaving.
            form.append(f"{len(constant)}s{part.form}")
            self._constants.append(constant)
            constant = b""
            slots += 1
        form.append(f"{len(constant)}s")
        self._constants.append(constant)
        self._slots = slots
        self._struct = struct.Struct("".join(form))
        self.size = self._struct.size

    def pack(self, *values: bytes | int) -> bytes:
        """Fill the slots. Raises struct.error for a value that does not fit, ValueError for a wrong number of them."""
        if len(values) != self._slots:
            raise ValueError(f"template has {self._slots} slots, got {len(values)} values")
        arguments: list[bytes | int] = [b""] * (2 * self._slots + 1)
        arguments[0::2] = self._constants
        arguments[1::2] = values
        return self._struct.pack(*arguments)


class _Value:
    """Marks, in a shape, the byte strings that differ from message to message."""


VALUE = _Value()
Shape = dict[int, "Shape | list[Shape] | _Value | None"]
_KEY: Shape = {1: [{1: None, 2: {1: VALUE}}]}
_DATA: Shape = {1: None, 2: [{1: None, 2: VALUE, 4: None}]}
ENTITY: Shape = {1: {1: None, 2: _KEY, 3: _DATA, 4: None, 5: None, 9: None}}
"""An Entity with a TableEntry whose key is exact and whose data are byte strings. None: constant; a list: repeated."""
UPDATE: Shape = {1: None, 2: ENTITY}
"""An Update of such an entity."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint and the place after it. Raises ValueError when it is cut off or longer than 64 bits."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("malformed varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _spans(data: bytes, start: int, end: int, shape: Shape) -> list[tuple[int, int]]:
    """Where the values of a message of this shape are, in order. Raises ValueError for any other message."""
    found: list[tuple[int, int]] = []
    last = 0
    while start < end:
        tag, start = read_varint(data, start)
        number = tag >> 3
        # In ascending order and once each, so that no other reading of the message is possible.
        if number not in shape or number < last or (number == last and not isinstance(shape[number], list)):
            raise ValueError(f"field {number} has no place here")
        last = number
        inner = shape[number]
        if tag & 7 == 0 and inner is None:
            _, start = read_varint(data, start)
            continue
        if tag & 7 != _LEN:
            raise ValueError(f"field {number} is of another type")
        size, start = read_varint(data, start)
        stop = start + size
        if stop > end:
            raise ValueError(f"field {number} is cut off")
        if isinstance(inner, _Value):
            found.append((start, stop))
        elif isinstance(inner, list):
            found += _spans(data, start, stop, inner[0])
        elif inner is not None:
            found += _spans(data, start, stop, inner)
        start = stop
    return found


_FORMS = {1: "B", 2: "H", 4: "4s", 8: "Q"}


class Layout:
    """What all messages of one sender and purpose have in common: every byte but the values.

    Learned from one such message (with its tag and length in front); runs of messages that agree with it
    are then taken apart at once. A value of 1, 2 or 8 bytes comes as a number, any other as bytes.
    """

    LONGEST_STEP = 512  # records that one comparison may hold

    __slots__ = ("size", "places", "_struct", "_mask", "_constant", "_steps")

    def __init__(self, record: bytes, head: int, shape: Shape) -> None:
        """record[head:] is the message. Raises ValueError when it is not of this shape."""
        spans = _spans(record, head, len(record), shape)
        self.size = len(record)
        self.places = [(start, stop - start) for start, stop in spans]  # of the values in a record: offset and size
        form, mask, at = [">"], bytearray(b"\xff" * len(record)), 0
        for start, stop in spans:
            form.append(f"{start - at}x{_FORMS.get(stop - start, f'{stop - start}s')}")
            mask[start:stop] = bytes(stop - start)
            at = stop
        form.append(f"{len(record) - at}x")
        self._struct = struct.Struct("".join(form))
        self._mask = bytes(mask)
        self._constant = bytes(byte & kept for byte, kept in zip(record, mask))
        self._steps: dict[int, tuple[int, int]] = {}  # mask and constants of so many records, as one number each

    def run(self, data: bytes, at: int, most: int) -> int:
        """How many records from `at` on, at most `most` and LONGEST_STEP, have this layout."""
        most = min(most, self.LONGEST_STEP)
        count = min(most, (len(data) - at) // self.size)
        if count <= 0:
            return 0
        numbers = self._steps.get(most)
        if numbers is None:
            numbers = self._steps[most] = (int.from_bytes(self._mask * most, "little"), int.from_bytes(self._constant * most, "little"))
        # All records are compared as one long number, whose lowest bit that differs is in the first that does.
        differing = int.from_bytes(data[at : at + count * self.size], "little") & numbers[0] ^ numbers[1]
        if not differing:
            return count
        return min(count, ((differing & -differing).bit_length() - 1) // 8 // self.size)

    def values(self, records: bytes) -> Iterator[tuple[Any, ...]]:
        """The values of records, a tuple each."""
        return self._struct.iter_unpack(records)


class Plan(Protocol):
    """What a learner makes of a layout."""

    @property
    def width(self) -> int:
        """How many values a record has; a layout with another number is not taken."""


P = TypeVar("P", bound=Plan)


class Run(Generic[P]):
    """Consecutive records of one layout, as they came; plan is what the learner said about them."""

    __slots__ = ("plan", "layout", "records")

    def __init__(self, plan: P, layout: Layout, records: bytes) -> None:
        self.plan = plan
        self.layout = layout
        self.records = records

    @property
    def count(self) -> int:
        return len(self.records) // self.layout.size

    @property
    def values(self) -> Iterator[tuple[Any, ...]]:
        """The values of each record."""
        return self.layout.values(self.records)


class Rest(bytes):
    """A field of a message that is not one of the records."""


class Splitter(Generic[P]):
    """Takes a message apart along one repeated field, whose records mostly are of few layouts.

    learn(body) parses a record of unknown layout: it returns the parsed record, and a plan when records
    of this layout may be given as runs from then on (else None).
    """

    _MOST_LAYOUTS = 128
    _LONGEST_RUN = 4096  # so that a large message can be walked with others having their turn

    def __init__(self, tag: int, shape: Shape, learn: Callable[[bytes], tuple[Any, P | None]]) -> None:
        self._tag = varint(tag << 3 | _LEN)
        self._shape = shape
        self._learn = learn
        self._known: dict[bytes, list[tuple[Layout, P]]] = {}
        self._count = 0

    def split(self, data: bytes) -> tuple[bytes, list[Any]]:
        """The bytes of all other fields, and the records: parsed ones and Runs. Raises ValueError for a malformed message."""
        rest: list[bytes] = []
        items: list[Any] = []
        for item in self.walk(data):
            if isinstance(item, Rest):
                rest.append(item)
            else:
                items.append(item)
        return b"".join(rest), items

    def walk(self, data: bytes) -> Iterator[Any]:
        """Parsed records, Runs and, as Rest, the other fields, in order. Raises ValueError where the message is malformed."""
        at, end, tag = 0, len(data), self._tag
        while at < end:
            if data[at : at + 1] != tag:
                start = at
                at = _skip(data, at)
                yield Rest(data[start:at])
                continue
            size, body = read_varint(data, at + 1)
            stop = body + size
            if stop > end:
                raise ValueError("a record is cut off")
            head = data[at:body]
            for layout, plan in self._known.get(head, ()):
                # Longer and longer steps, so that neither long runs nor mixtures are dear.
                count, step = 0, 8
                while count < self._LONGEST_RUN and (more := layout.run(data, at + count * layout.size, step)) > 0:
                    count += more
                    if more < step:
                        break
                    step = min(step * 8, layout.LONGEST_STEP)
                if count:
                    yield Run(plan, layout, data[at : at + count * layout.size])
                    at += count * layout.size
                    break
            else:
                item, learned = self._learn(data[body:stop])
                yield item
                if learned is not None:
                    self._add(head, data[at:stop], learned)
                at = stop

    def _add(self, head: bytes, record: bytes, plan: P) -> None:
        try:
            layout = Layout(record, len(head), self._shape)
        except ValueError:
            return
        if len(layout.places) != plan.width:
            return
        if self._count >= self._MOST_LAYOUTS:
            # Senders come and go; those that matter are learned again at once.
            self._known.clear()
            self._count = 0
        self._known.setdefault(head, []).append((layout, plan))
        self._count += 1


def _skip(data: bytes, at: int) -> int:
    """The place after the field at `at`. Raises ValueError."""
    tag, at = read_varint(data, at)
    kind = tag & 7
    if kind == 0:
        _, at = read_varint(data, at)
    elif kind == _LEN:
        size, at = read_varint(data, at)
        at += size
    elif kind in (1, 5):
        at += 8 if kind == 1 else 4
    else:
        raise ValueError(f"wire type {kind}")
    if at > len(data):
        raise ValueError("a field is cut off")
    return at
