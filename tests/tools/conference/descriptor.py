"""The dependency descriptor (AV1 RTP payload format, appendix A): mandatory fields, template structure, layers.

Template ids are not fixed: a key frame whose structure changed moves template_id_offset by the number of templates of the
old one. LayerTable therefore keeps the decisions of both, and those that Chromium will ask for next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.tools.conference.rtp import MediaError

IDS = 64
NOT_PRESENT, DISCARDABLE, SWITCH, REQUIRED = range(4)  # a template's dti for a decode target: "-", "D", "S", "R"


class _Bits:
    """Reads a byte string bit by bit, most significant first. Raises MediaError at the end."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        if count > self._left:
            raise MediaError(f"dependency descriptor ends {count - self._left} bits early")
        self._left -= count
        return self._value >> self._left & (1 << count) - 1

    def below(self, limit: int) -> int:
        """ns(limit): a value below limit in as few bits as it takes."""
        width = limit.bit_length()
        short = (1 << width) - limit
        value = self.take(width - 1)
        return value if value < short else (value << 1) - short + self.take(1)


class Mandatory(NamedTuple):
    """What every descriptor begins with, and all that a data plane has to read."""

    start: bool
    end: bool
    template_id: int
    frame_number: int


class Template(NamedTuple):
    """One template: layers, a dti for each decode target, frame differences, a difference for each chain."""

    spatial: int
    temporal: int
    dtis: tuple[int, ...]
    fdiffs: tuple[int, ...]
    chain_fdiffs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """A template dependency structure.

    protected_by names for each decode target its chain; targets hold (spatial, temporal) of each decode target;
    resolutions are (width, height) of each spatial layer, or nothing.
    """

    offset: int
    templates: tuple[Template, ...]
    protected_by: tuple[int, ...]
    targets: tuple[tuple[int, int], ...]
    resolutions: tuple[tuple[int, int], ...]

    def template(self, template_id: int) -> Template:
        """The template with this id. Raises MediaError when the structure has none."""
        index = (template_id - self.offset) % IDS
        if index >= len(self.templates):
            raise MediaError(f"template id {template_id} is not in {self.offset}..{self.offset + len(self.templates) - 1}")
        return self.templates[index]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A whole descriptor: template is the frame's own (with custom values put in); structure when the packet carried one."""

    mandatory: Mandatory
    template: Template
    structure: Structure | None
    active_targets: int | None  # bit n: decode target n is still sent; None: nothing new was said


def parse_mandatory(data: bytes) -> Mandatory:
    """Read the three bytes that are always there. Raises MediaError."""
    if len(data) < 3:
        raise MediaError(f"dependency descriptor of {len(data)} bytes: 3 are the least")
    return Mandatory(bool(data[0] & 0x80), bool(data[0] & 0x40), data[0] & 0x3F, data[1] << 8 | data[2])


def has_structure(data: bytes) -> bool:
    """Whether the descriptor carries a template structure: the packet that the agent must see."""
    return len(data) > 3 and bool(data[3] & 0x80)


def parse(data: bytes, known: Structure | None = None) -> Descriptor:
    """Read a whole descriptor; known is the stream's structure so far. Raises MediaError."""
    mandatory = parse_mandatory(data)
    if len(data) == 3:
        if known is None:
            raise MediaError("dependency descriptor before any template structure")
        return Descriptor(mandatory, known.template(mandatory.template_id), None, None)
    bits = _Bits(data[3:])
    present, active, custom_dtis, custom_fdiffs, custom_chains = (bits.take(1) for _ in range(5))
    structure = _structure(bits) if present else None
    using = structure or known
    if using is None:
        raise MediaError("dependency descriptor before any template structure")
    count = len(using.targets)
    active_targets = (1 << count) - 1 if present else None
    if active:
        active_targets = bits.take(count)
    template = using.template(mandatory.template_id)
    if custom_dtis:
        template = template._replace(dtis=tuple(bits.take(2) for _ in range(count)))
    if custom_fdiffs:
        fdiffs = []
        while size := bits.take(2):
            fdiffs.append(bits.take(4 * size) + 1)
        template = template._replace(fdiffs=tuple(fdiffs))
    if custom_chains:
        template = template._replace(chain_fdiffs=tuple(bits.take(8) for _ in template.chain_fdiffs))
    return Descriptor(mandatory, template, structure, active_targets)


def _structure(bits: _Bits) -> Structure:
    offset = bits.take(6)
    target_count = bits.take(5) + 1
    layers = [(0, 0)]
    while (step := bits.take(2)) != 3:
        spatial, temporal = layers[-1]
        layers.append((spatial, temporal + 1) if step == 1 else (spatial + 1, 0) if step == 2 else (spatial, temporal))
        if len(layers) > IDS:
            raise MediaError(f"template structure with more than {IDS} templates")
    dtis = [tuple(bits.take(2) for _ in range(target_count)) for _ in layers]
    fdiffs = []
    for _ in layers:
        of_template = []
        while bits.take(1):
            of_template.append(bits.take(4) + 1)
        fdiffs.append(tuple(of_template))
    chains = bits.below(target_count + 1)
    protected: tuple[int, ...] = ()
    chain_fdiffs: list[tuple[int, ...]] = [()] * len(layers)
    if chains:
        protected = tuple(bits.below(chains) for _ in range(target_count))
        chain_fdiffs = [tuple(bits.take(4) for _ in range(chains)) for _ in layers]
    templates = tuple(Template(*layer, *rest) for layer, *rest in zip(layers, dtis, fdiffs, chain_fdiffs, strict=True))
    targets = []
    for target in range(target_count):
        needed = [t for t in templates if t.dtis[target] != NOT_PRESENT]
        targets.append((max((t.spatial for t in needed), default=0), max((t.temporal for t in needed), default=0)))
    resolutions: tuple[tuple[int, int], ...] = ()
    if bits.take(1):
        resolutions = tuple((bits.take(16) + 1, bits.take(16) + 1) for _ in range(layers[-1][0] + 1))
    return Structure(offset, templates, protected, tuple(targets), resolutions)


def needed_by(template: Template) -> int:
    """Bit n: decode target n needs frames of this template."""
    return sum(1 << target for target, dti in enumerate(template.dtis) if dti != NOT_PRESENT)


def switches(template: Template) -> int:
    """Bit n: whoever can decode a frame of this template can decode all that decode target n needs from there on."""
    return sum(1 << target for target, dti in enumerate(template.dtis) if dti == SWITCH)


EVERYBODY = (1 << 32) - 1


class Layer(NamedTuple):
    """A row of the layer table: bit n of needed_by: decode target n gets the packet; of switches: see switches()."""

    needed_by: int
    switches: int


UNKNOWN = Layer(EVERYBODY, 0)


class LayerTable:
    """For each template id of a stream, which decode targets need it, and move up there.

    see() takes each descriptor that carries a structure. The rows of the structure before
    stay (late packets still ask for them) and so do rows for the ids that the same structure would have after the next
    move of the offset: they are in before the first packet that needs them. An id without a row is forwarded, because a
    packet too many does less harm than a packet too few.
    """

    def __init__(self) -> None:
        self._structure: Structure | None = None
        self._rows: dict[int, Layer] = {}
        self._before: dict[int, Layer] = {}

    def layer(self, template_id: int) -> Layer:
        """The row of this template, or what holds where none is."""
        return self._rows.get(template_id, UNKNOWN)

    def see(self, structure: Structure) -> None:
        """Take a structure in."""
        current = _rows(structure, structure.offset)
        if self._structure is not None and structure.offset != self._structure.offset:
            self._before = _rows(self._structure, self._structure.offset)
        self._structure = structure
        self._rows = {**_rows(structure, structure.offset + len(structure.templates)), **self._before, **current}


def _rows(structure: Structure, offset: int) -> dict[int, Layer]:
    return {(offset + i) % IDS: Layer(needed_by(template), switches(template)) for i, template in enumerate(structure.templates)}
