"""Codec of the rtpproxy control protocol: commands, replies, and the agent's own commands. Pure functions, no I/O.

Every command keeps the bytes it came from (`Command.raw`), so that passing it on is byte-identical whatever was or
was not understood. Text is Latin-1: any byte has a character, so reading and writing back never loses one.
Names follow the protocol: U (update, the offer), L (lookup, the answer), D (delete), Q (query).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from shunt.net import Endpoint

PROTOCOL_VERSION = 20040107
"""What V is answered with: the date of the basic protocol."""

ERROR_NAMES: dict[int, tuple[str, str]] = {
    0: ("unknown-command", "unknown command"),
    1: ("argument-count", "wrong number of arguments"),
    2: ("modifiers-not-allowed", "modifiers on a command that takes none"),
    3: ("bad-subcommand", "unknown or misplaced && sub-command"),
    5: ("syntax", "syntax error, or a cookie without a command"),
    8: ("bad-delete-modifier", "unknown modifier on D; rtpengine: any error"),
    10: ("bad-notify-tag", "invalid URL encoding in the notify tag"),
    11: ("no-external", "modifier E without bridging mode"),
    12: ("no-internal", "modifier I without bridging mode"),
    13: ("bad-resize", "modifier Z needs a packet time in ms"),
    14: ("bad-codecs", "modifier c needs a list of payload types, once"),
    15: ("bad-local-address", "modifier l needs an address"),
    16: ("bad-remote-address", "modifier R needs an address"),
    18: ("bad-info-modifier", "unknown modifier on I"),
    31: ("local-address-refused", "the address of modifier l is not usable"),
    32: ("remote-address-refused", "the address of modifier R is not usable"),
    35: ("unknown-modifier", "unknown modifier on U or L"),
    36: ("no-local-address", "no local address of that family"),
    37: ("bad-address", "the media address is not an address"),
    50: ("session-not-found", "no such session"),
    62: ("unknown-query-counter", "unknown counter name in Q"),
    68: ("unknown-global-counter", "unknown counter name in G"),
    71: ("no-port", "no free port for the other leg"),
    72: ("no-port", "no free port, or the session cannot be created"),
    75: ("notify-off", "notification requested, but the relay was started without -n"),
    98: ("overload", "the relay is overloaded"),
    99: ("draining", "the relay takes no new sessions"),
    **{code: ("no-memory", "the relay is out of memory") for code in range(81, 90)},
}
"""Error number -> (name, meaning), as rtpproxy 3.2 gives them (measured or read in its source)."""

E_SYNTAX = 5
E_SESSION_NOT_FOUND = 50

DEFAULT_COUNTERS = ("ttl", "npkts_ina", "npkts_ino", "nrelayed", "ndropped")
"""The counters of a Q that names none, in the order of its reply."""

_SEPARATORS = b" \t\r\n"
_TOKEN = re.compile(rb"[^ \t\r\n]+")
_MEDIA = re.compile(r"(.*);(0|[1-9][0-9]{0,4})\Z", re.DOTALL)
_ERROR = re.compile(rb"[Ee]([0-9]{1,3})\Z")
_NUMBER = re.compile(rb"[0-9]{1,19}\Z")
_FLOAT = re.compile(rb"[0-9]{1,19}\.[0-9]{1,19}\Z")
_SELF = b"%%CC_SELF%%"
_IPV4_TEXT = re.compile(r"[0-9.]+")
_IPV6_TEXT = re.compile(r"[0-9A-Fa-f:.]+")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

_KNOWN_VERBS = frozenset("ULDQVIGXPSCRN")
_FLAG_LETTERS = frozenset("AEISWN6")


class CodecError(ValueError):
    """Bytes that are not what the protocol has there. `position` is the offset into the text that was read."""

    def __init__(self, what: str, position: int = 0, text: bytes = b"") -> None:
        super().__init__(f"{what} at byte {position}" + (f" of {text[:120]!r}" if text else ""))
        self.what = what
        self.position = position


@dataclass(frozen=True, slots=True)
class Modifiers:
    """The letters after the verb, read. For U and L all fields; for other verbs only `letters`."""

    letters: frozenset[str] = frozenset()
    """Every letter present, upper case, and "6"; with arguments (Z, C, L, R, T) or without."""
    codecs: tuple[int, ...] = ()
    """Payload types of c<list>."""
    resize: int | None = None
    """Packet time in ms of Z<n>."""
    local_address: str | None = None
    """l<address>: the relay address to use."""
    remote_address: str | None = None
    """R<address>: next hop by which the relay picks its address (automatic bridging)."""
    ttl: int | None = None
    """Seconds, of t<N> (OpenSIPS; no rtpproxy up to 3.2 knows it)."""
    asymmetric: bool = False
    """A, unless a later S takes it back: nothing is latched."""
    symmetric: bool = False
    """S, unless a later A takes it back: latch even in bridging mode."""
    weak: bool = False
    ipv6: bool = False
    new_port: bool = False
    """N: the relay takes a new port, so the port of a live leg changes."""
    directions: str = ""
    """The letters E and I in their order: side of the command's sender, then side of the address returned."""
    unknown: str = ""
    """What no version known to us has; the relay judges it."""
    parts: tuple[str, ...] = field(default=(), repr=False)
    """Each modifier with its argument, as sent."""


_NO_MODIFIERS = Modifiers()


@dataclass(slots=True)  # not frozen, only because making a frozen one takes three times as long
class Command:
    """One command. Tags are without their `;N`; the media index N stands beside them (None when absent)."""

    raw: bytes
    """Exactly the command, without cookie and line end."""
    cookie: bytes | None
    verb: str
    """Upper case: U L D Q V VF I G X P S C R N; a first word that is none of these is kept as it is."""
    modifiers: str
    """The text after the verb, as sent."""
    flags: Modifiers = _NO_MODIFIERS
    call_id: str | None = None
    address: str | None = None
    """Media address of U and L as sent; None for "-"."""
    port: int | None = None
    from_tag: str | None = None
    from_media: int | None = None
    to_tag: str | None = None
    to_media: int | None = None
    notify_socket: str | None = None
    notify_tag: str | None = None
    """Still URL-encoded; notify_line() makes the line to send."""
    extra: tuple[str, ...] = ()
    """Arguments with no field of their own: counter names of Q and G, the date of VF, target of C, file of P."""
    subcommands: tuple[bytes, ...] = ()
    """What followed each `&&`, without the blanks around it."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The media address and port of U or L; None when absent ("-", "0.0.0.0", "::") or not an address."""
        if self.address is None or self.port is None:
            return None
        try:
            endpoint = Endpoint.of(self.address, self.port)
        except ValueError:
            return None
        return endpoint if any(endpoint.addr) else None

    @property
    def on_hold(self) -> bool:
        """True for a U or L with the null address, hold as RFC 3264 section 8.4 describes for older phones."""
        if self.address is None:
            return False
        try:
            return _ip(self.address).is_unspecified
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply (or one part of a reply to a command with sub-commands), without cookie and line end."""

    raw: bytes
    error: int | None = None
    """50 for E50."""
    port: int | None = None
    """The relay port, when the reply reads as one; 0 means refused (L on an unknown session)."""
    address: str | None = None
    ipv6: bool = False
    third: str | None = None
    """The third word of a port reply: "6" (rtpproxy, IPv6 only), "4" or "6" (rtpengine, always)."""
    numbers: tuple[int | float, ...] = ()
    """All words, when every one is a number."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The relay's address and port; None without either, for port 0 and for the null address."""
        if not self.port or self.address is None:
            return None
        try:
            endpoint = Endpoint.of(self.address, self.port)
        except ValueError:
            return None
        return endpoint if any(endpoint.addr) else None

    @property
    def ok(self) -> bool:
        """False for an E reply; "0" is the success of D and the refusal of L, so the caller judges that."""
        return self.error is None

    @property
    def error_text(self) -> str:
        """Error as an operator reads it: "E50 session-not-found (no such session)"; "" without an error."""
        if self.error is None:
            return ""
        name, meaning = ERROR_NAMES.get(self.error, ("unlisted", "not a code of rtpproxy 3.2"))
        return f"E{self.error} {name} ({meaning})"


def parse_datagram(data: bytes) -> tuple[bytes, bytes]:
    """Split a datagram into cookie and body (command or reply, without line end; empty if there was only a cookie).

    Raises CodecError when there is not even a cookie.
    """
    match = _TOKEN.search(data)
    if match is None:
        raise CodecError("no cookie", 0, data)
    return match.group(), data[match.end():].lstrip(_SEPARATORS).rstrip(b"\r\n")


def parse_command(body: bytes, cookie: bytes | None = None) -> Command:
    """Read a command (without cookie; a line end is dropped). Raises CodecError, and nothing else, for any bytes.

    Refused is what rtpproxy itself refuses as malformed: too few arguments for the verb, a port that is no number, a
    modifier without the argument it needs, a NUL byte (C programs would read less than we do). Unknown verbs,
    unknown modifiers and arguments too many are kept: a newer relay may know them.
    """
    raw = bytes(body).rstrip(b"\r\n")
    nul = raw.find(b"\0")
    if nul >= 0:
        raise CodecError("NUL byte", nul, raw)
    tokens = [(m.start(), m.group()) for m in _TOKEN.finditer(raw)]
    if not tokens:
        raise CodecError("no command", 0, raw)
    main, subcommands = _split_subcommands(raw, tokens)
    if not main:
        raise CodecError("no command before &&", 0, raw)
    position, word = main[0]
    text = word.decode("latin-1")
    verb, modifiers = _split_verb(text)
    args = [(at, token.decode("latin-1")) for at, token in main[1:]]
    base = {"raw": raw, "cookie": cookie, "verb": verb, "modifiers": modifiers, "subcommands": subcommands}
    if verb in ("U", "L"):
        flags = _media_modifiers(modifiers, position + 1, raw)
        return Command(flags=flags, **base, **_media_arguments(verb, args, raw))
    flags = _other_modifiers(verb, modifiers)
    if verb in ("D", "Q", "S", "R", "N"):
        _need(verb, args, ("call-id", "from-tag"), raw)
        return Command(flags=flags, **base, **_tags(args, 1), call_id=args[0][1], extra=_texts(args[3:]))
    if verb in ("P", "C"):
        names = ("call-id", "file name", "codecs", "from-tag") if verb == "P" else ("call-id", "target", "from-tag")
        _need(verb, args, names, raw)
        first_tag = len(names) - 1
        extra = _texts(args[1:first_tag]) + _texts(args[first_tag + 2:])
        return Command(flags=flags, **base, **_tags(args, first_tag), call_id=args[0][1], extra=extra)
    if verb == "VF":
        _need(verb, args, ("date",), raw)
    return Command(flags=flags, **base, extra=_texts(args))


@functools.lru_cache(maxsize=512)
def _other_modifiers(verb: str, text: str) -> Modifiers:
    letters = frozenset(c.upper() for c in text if c.isascii() and c.isalpha())
    return Modifiers(letters=letters, weak=verb == "D" and "W" in letters)


@functools.lru_cache(maxsize=512)
def _split_verb(word: str) -> tuple[str, str]:
    upper = word.upper()
    if upper == "VF":
        return "VF", ""
    # upper() may lengthen non-ASCII text, hence the test on the first character alone.
    first = word[0].upper()
    return (first, word[1:]) if first in _KNOWN_VERBS else (word, "")


def _split_subcommands(
    raw: bytes, tokens: list[tuple[int, bytes]]
) -> tuple[list[tuple[int, bytes]], tuple[bytes, ...]]:
    marks = [i for i, (_, token) in enumerate(tokens) if token == b"&&"]
    if not marks:
        return tokens, ()
    parts = []
    for mark, following in zip(marks, [*marks[1:], None]):
        start = tokens[mark][0] + 2
        end = len(raw) if following is None else tokens[following][0]
        parts.append(raw[start:end].strip(_SEPARATORS))
        if not parts[-1]:
            raise CodecError("nothing after &&", start, raw)
    return tokens[: marks[0]], tuple(parts)


def _need(verb: str, args: list[tuple[int, str]], names: tuple[str, ...], raw: bytes) -> None:
    if len(args) < len(names):
        raise CodecError(f"{verb} without {names[len(args)]}", len(raw), raw)


def _texts(args: list[tuple[int, str]]) -> tuple[str, ...]:
    return tuple(text for _, text in args)


def split_tag(text: str) -> tuple[str, int | None]:
    """"tag;2" -> ("tag", 2); a tag without a media index, or with one not in plain decimal, is kept whole."""
    match = _MEDIA.match(text) if ";" in text else None
    return (match.group(1), int(match.group(2))) if match else (text, None)


def join_tag(tag: str, media: int | None) -> str:
    """The inverse of split_tag()."""
    return tag if media is None else f"{tag};{media}"


def _tags(args: list[tuple[int, str]], first: int) -> dict:
    from_tag, from_media = split_tag(args[first][1])
    fields = {"from_tag": from_tag, "from_media": from_media}
    if len(args) > first + 1:
        fields["to_tag"], fields["to_media"] = split_tag(args[first + 1][1])
    return fields


def _looks_like_socket(text: str) -> bool:
    # A SIP tag is a token (RFC 3261 section 25.1), which has neither ":" nor "/"; every notify socket has one.
    return ":" in text or "/" in text


def _media_arguments(verb: str, args: list[tuple[int, str]], raw: bytes) -> dict:
    _need(verb, args, ("call-id", "address", "port", "from-tag"), raw)
    at, port = args[2]
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise CodecError(f"port {port[:40]!r} is not a number in 0..65535", at, raw)
    address = args[1][1]
    fields: dict = {"call_id": args[0][1], "address": None if address == "-" else address, "port": int(port)}
    rest = args[4:]
    tags = [args[3]]
    notify: list[tuple[int, str]] = []
    if verb == "L" or len(rest) <= 1:
        tags, rest = tags + rest[:1], rest[1:]
    elif len(rest) == 2:
        # `from socket tag`, or Kamailio's `from to socket` of a re-INVITE with timeout_socket set (facts section 11),
        # which rtpproxy takes for socket and tag; the meaning is plain all the same.
        if _looks_like_socket(rest[1][1]) and not _looks_like_socket(rest[0][1]):
            tags.append(rest[0])
            notify, rest = rest[1:], []
        else:
            notify, rest = rest, []
    else:
        tags.append(rest[0])
        notify, rest = rest[1:3], rest[3:]
    fields.update(_tags(tags, 0))
    if notify:
        fields["notify_socket"] = notify[0][1]
    if len(notify) > 1:
        at, tag = notify[1]
        bad = _BAD_ESCAPE.search(tag)
        if bad:
            raise CodecError("notify tag with an invalid % escape", at + bad.start(), raw)
        fields["notify_tag"] = tag
    fields["extra"] = _texts(rest)
    return fields


def _media_modifiers(text: str, base: int, raw: bytes) -> Modifiers:
    """The modifiers of U and L; `base` is the offset of the text in the command, for error positions."""
    known = _known_modifiers.get(text)
    if known is None:
        known = _parse_media_modifiers(text, base, raw)
        if len(_known_modifiers) >= _MODIFIERS_KEPT:
            _known_modifiers.clear()
        _known_modifiers[text] = known
    return known


_MODIFIERS_KEPT = 512
# A SIP server says the same few with every call.
_known_modifiers: dict[str, Modifiers] = {}


def _parse_media_modifiers(text: str, base: int, raw: bytes) -> Modifiers:
    if not text:
        return _NO_MODIFIERS
    letters: set[str] = set()
    values: dict = {}
    directions = unknown = ""
    parts: list[str] = []
    i = 0
    while i < len(text):
        start = i
        letter = text[i].upper() if text[i].isascii() else text[i]
        i += 1
        if letter in ("Z", "T"):
            i = _digits_end(text, i)
            if i == start + 1 or i > start + 11:
                if letter == "Z":
                    raise CodecError("modifier Z without a packet time", base + start, raw)
                unknown += text[start:i]
            else:
                values["resize" if letter == "Z" else "ttl"] = int(text[start + 1:i])
        elif letter == "C":
            while i < len(text) and text[i] in "0123456789,":
                i += 1
            listed = [item for item in text[start + 1:i].split(",") if item]
            if not listed or "codecs" in values or any(len(item) > 3 for item in listed):
                raise CodecError("modifier c needs a list of payload types, once", base + start, raw)
            values["codecs"] = tuple(int(item) for item in listed)
        elif letter in ("L", "R"):
            address, i = _address_at(text, i)
            if address is None:
                raise CodecError(f"modifier {text[start]} without an address", base + start, raw)
            values["local_address" if letter == "L" else "remote_address"] = address
        elif letter in ("A", "S"):
            values["asymmetric"] = letter == "A"
            values["symmetric"] = letter == "S"
        elif letter in ("E", "I"):
            directions += letter
        elif letter not in _FLAG_LETTERS:
            unknown += text[start]
        if letter == "6" or (letter.isascii() and letter.isalpha()):
            letters.add(letter)
        parts.append(text[start:i])
    return Modifiers(
        letters=frozenset(letters), directions=directions, unknown=unknown, weak="W" in letters,
        ipv6="6" in letters, new_port="N" in letters, parts=tuple(parts), **values,
    )


def _digits_end(text: str, i: int) -> int:
    while i < len(text) and text[i] in "0123456789":
        i += 1
    return i


def _address_at(text: str, i: int) -> tuple[str | None, int]:
    """The address that begins at text[i] and the offset behind it; (None, i) if there is none.

    In brackets, or IPv4, or bare IPv6. Bare IPv6 may run into a following `c<list>`, whose letter is a hex digit:
    OpenSIPS writes addresses in upper case and all eight groups, so the end is the first one that makes a valid
    address with what follows starting a modifier.
    """
    if text[i:i + 1] == "[":
        end = text.find("]", i)
        inside = text[i + 1:end] if end > 0 else ""
        return (inside, end + 1) if _is_address(inside) else (None, i)
    match = _IPV6_TEXT.match(text, i)
    if match and ":" in match.group():
        ends = [k for k in range(i, match.end()) if text[k] == "c" and text[k + 1:k + 2].isdigit()]
        for end in [*ends, match.end()]:
            if _is_address(text[i:end]):
                return text[i:end], end
        return None, i
    match = _IPV4_TEXT.match(text, i)
    if match and _is_address(match.group()):
        return match.group(), match.end()
    return None, i


def _is_address(text: str) -> bool:
    try:
        _ip(text)
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=16384)
def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text)


def sub_lookup(command: Command) -> Command | None:
    """The answer half of `U callid ip port f;1 t;1 && L ip2 port2` as a command with the U's call-id and tags.

    None when there is no such sub-command. Raises CodecError when there is one that cannot be read.
    """
    for part in command.subcommands:
        words = part.split()
        if len(words) == 3 and words[0][:1] in (b"L", b"l") and command.from_tag is not None and command.call_id is not None:
            tags = [join_tag(command.from_tag, command.from_media)]
            if command.to_tag is not None:
                tags.append(join_tag(command.to_tag, command.to_media))
            text = b" ".join([words[0], command.call_id.encode("latin-1"), words[1], words[2]])
            return parse_command(text + b" " + " ".join(tags).encode("latin-1"), command.cookie)
    return None


def parse_reply(body: bytes) -> Reply:
    """Read any reply (without cookie; a line end is dropped). Never raises: what has no known shape stays in raw."""
    raw = bytes(body).rstrip(b"\r\n")
    words = raw.split()
    if not words:
        return Reply(raw)
    error = _ERROR.match(words[0])
    if error is not None and len(words) == 1:
        return Reply(raw, error=int(error.group(1)))
    numbers: list[int | float] = []
    for word in words:
        if _NUMBER.match(word):
            numbers.append(int(word))
        elif _FLOAT.match(word):
            numbers.append(float(word))
        else:
            break
    all_numbers = tuple(numbers) if len(numbers) == len(words) else ()
    if len(words) > 3 or not _NUMBER.match(words[0]) or int(words[0]) > 65535:
        return Reply(raw, numbers=all_numbers)
    if len(words) == 1:
        return Reply(raw, port=int(words[0]), numbers=all_numbers)
    address = words[1].decode("latin-1")
    if not _is_address(address):
        return Reply(raw, numbers=all_numbers)
    third = words[2].decode("latin-1") if len(words) == 3 else None
    return Reply(raw, port=int(words[0]), address=address, ipv6=third == "6" or ":" in address, third=third)


@functools.lru_cache(maxsize=256)  # several parts of the agent read one reply
def parse_ports_reply(body: bytes) -> tuple[Reply, ...]:
    """Read the reply to U or L: the command's own part, then one for each sub-command that answered (`&&`).

    Raises CodecError when the first part is neither a port nor an error.
    """
    raw = bytes(body).rstrip(b"\r\n")
    parts: list[list[bytes]] = [[]]
    for word in raw.split():
        if word == b"&&":
            parts.append([])
        else:
            parts[-1].append(word)
    replies = tuple(parse_reply(raw if len(parts) == 1 else b" ".join(part)) for part in parts)
    if replies[0].port is None and replies[0].error is None:
        raise CodecError("reply to U or L is neither a port nor an error", 0, raw)
    return replies


def _query_values(command: Command, reply: bytes) -> list[tuple[str, int, bytes]]:
    """(name, offset of the value in the reply, value as sent) for each counter of a reply to Q."""
    if command.verb != "Q":
        raise CodecError(f"{command.verb} is not a query", 0, command.raw)
    names = command.extra or DEFAULT_COUNTERS
    words: list[tuple[int, bytes]] = []
    for match in _TOKEN.finditer(reply):
        if match.group() == b"&&":
            break
        words.append((match.start(), match.group()))
    found = []
    verbose = "V" in command.flags.letters
    if len(words) != len(names):
        raise CodecError(f"query reply has {len(words)} values for {len(names)} counters", 0, reply)
    for name, (at, word) in zip(names, words):
        value = word
        if verbose:
            label, equals, value = word.partition(b"=")
            if not equals:
                raise CodecError("query reply without name=value", at, reply)
            name = label.decode("latin-1")
            at += len(label) + 1
        if not _NUMBER.match(value) and not _FLOAT.match(value):
            raise CodecError(f"counter {name} is not a number", at, reply)
        found.append((name, at, value))
    return found


def parse_query_reply(command: Command, reply: bytes) -> list[tuple[str, int | float]]:
    """The counters of a reply to Q, by the names the command asked for (or the default five, or `name=value`).

    Raises CodecError for an error reply and for one that does not fit the command.
    """
    return [
        (name, int(value) if value.isdigit() else float(value)) for name, _, value in _query_values(command, reply)
    ]


def rewrite_query_reply(command: Command, reply: bytes, add: dict[str, int]) -> bytes:
    """Add counts to the named counters in a reply to Q, in whatever form it has; all else stays byte-identical.

    Error replies come back as they are, as do counters that are fractions. Raises CodecError for a reply that does
    not fit the command; the caller then passes the reply on untouched.
    """
    if parse_reply(reply).error is not None:
        return reply
    pieces = []
    done = 0
    for name, at, value in _query_values(command, reply):
        if add.get(name) and value.isdigit():
            pieces += [reply[done:at], b"%d" % (int(value) + add[name])]
            done = at + len(value)
    return b"".join(pieces) + reply[done:]


def rewrite_notify_self(command: Command, address: str) -> bytes:
    """The command with %%CC_SELF%% in its notify socket replaced by an address; all else byte-identical.

    %%CC_SELF%% means "whoever sent this command"; behind an agent that would be the agent, so the SIP server's own
    address is put in before the command is passed on. IPv6 is put in brackets. Raises ValueError for a bad address.
    """
    if command.notify_socket is None or _SELF.decode() not in command.notify_socket:
        return command.raw
    ip = ipaddress.ip_address(address)
    text = str(ip) if ip.version == 4 else f"[{ip}]"
    socket = command.notify_socket.encode("latin-1")
    for match in list(_TOKEN.finditer(command.raw))[5:]:
        if match.group() == socket:
            return command.raw[:match.start()] + socket.replace(_SELF, text.encode()) + command.raw[match.end():]
    raise AssertionError("notify socket is not among the command's words")


def with_new_port(body: bytes) -> bytes:
    """The same U or L with modifier N, and without sub-commands: the relay takes another port for the leg that it answers with."""
    words = body.split()
    if b"&&" in words:
        del words[words.index(b"&&"):]
    words[0] = words[0][:1] + b"N" + words[0][1:]
    return b" ".join(words)


def splice_reply(reply: bytes, number: int, answer: bytes) -> bytes:
    """A reply to U or L whose part `number` (from 0, parts are divided by &&) is replaced by another answer."""
    parts = [b" ".join(part.split()) for part in (b" " + reply + b" ").split(b" && ")]
    parts[number] = b" ".join(answer.split())
    return b" && ".join(parts)


def notify_line(notify_tag: str) -> bytes:
    """The line that a relay sends to the notify socket at media time-out: the tag, URL-decoded, and a newline."""
    return unquote_to_bytes(notify_tag.encode("latin-1")) + b"\n"


def keepalive_modifiers(flags: Modifiers) -> str:
    """The modifiers of a leg's last command as its keep-alive L repeats them.

    L overwrites the leg's asymmetric, codec and resize state, so these must be said again (facts section 7). N is
    left out: it would move the leg to a new port.
    """
    return "".join(part for part in flags.parts if part not in ("n", "N"))


def _word(name: str, text: str) -> bytes:
    try:
        word = text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise CodecError(f"{name} {text[:60]!r} has a character outside Latin-1", error.start) from None
    match = _TOKEN.fullmatch(word)
    if match is None or b"\0" in word or word == b"&&":
        raise CodecError(f"{name} {text[:60]!r} is not one word")
    return word


def _media_command(
    verb: str, modifiers: str, call_id: str, address: str | None, port: int, from_tag: str, to_tag: str | None,
    media: int | None,
) -> list[bytes]:
    if not 0 <= port <= 65535:
        raise CodecError(f"port {port} is not in 0..65535")
    words = [
        _word("modifiers", verb + modifiers), _word("call-id", call_id), _word("address", address or "-"),
        b"%d" % port, _word("from-tag", join_tag(from_tag, media)),
    ]
    if to_tag is not None:
        words.append(_word("to-tag", join_tag(to_tag, media)))
    return words


def build_update(
    call_id: str, address: str | None, port: int, from_tag: str, to_tag: str | None = None, *,
    media: int | None = 1, modifiers: str = "", notify: tuple[str, str] | None = None,
) -> bytes:
    """U, without cookie: address None becomes "-"; `notify` is (socket, URL-encoded tag). Raises CodecError."""
    words = _media_command("U", modifiers, call_id, address, port, from_tag, to_tag, media)
    if notify is not None:
        words += [_word("notify socket", notify[0]), _word("notify tag", notify[1])]
    return b" ".join(words)


def build_lookup(
    call_id: str, from_tag: str, to_tag: str | None, *, media: int | None = 1, modifiers: str = "",
    address: str | None = None, port: int = 0, ttl: int | None = None,
) -> bytes:
    """L, without cookie. Without an address it is the keep-alive `L callid - 0 from;N to;N`, which restarts the
    session's timer without opening a window for re-latching; `ttl` adds `&& T<seconds>` (relays with VF 20210524).
    Raises CodecError.
    """
    words = _media_command("L", modifiers, call_id, address, port, from_tag, to_tag, media)
    if ttl is not None:
        words += [b"&&", b"T%d" % _seconds(ttl)]
    return b" ".join(words)


def build_delete(call_id: str, from_tag: str, to_tag: str | None = None, *, media: int | None = None,
                 weak: bool = False) -> bytes:
    """D, without cookie: of all media, or of one when `media` is given. Raises CodecError."""
    words = [b"Dw" if weak else b"D", _word("call-id", call_id), _word("from-tag", join_tag(from_tag, media))]
    if to_tag is not None:
        words.append(_word("to-tag", join_tag(to_tag, media)))
    return b" ".join(words)


def build_query(
    call_id: str, from_tag: str, to_tag: str | None, *, media: int | None = 1, counters: tuple[str, ...] = (),
    verbose: bool = False, ttl: int | None = None,
) -> bytes:
    """Q, without cookie; `ttl` adds `&& S ttl=<seconds>`, the session's new time-out (relays with VF 20251015).

    Raises CodecError; also for counters without a to-tag, as the relay would take the first one for it.
    """
    words = [b"Qv" if verbose else b"Q", _word("call-id", call_id), _word("from-tag", join_tag(from_tag, media))]
    if to_tag is not None:
        words.append(_word("to-tag", join_tag(to_tag, media)))
    elif counters:
        raise CodecError("Q with counter names needs a to-tag")
    words += [_word("counter", name) for name in counters]
    if ttl is not None:
        words += [b"&&", b"S", b"ttl=%d" % _seconds(ttl)]
    return b" ".join(words)


def build_version() -> bytes:
    """V, without cookie: asks for the protocol's version."""
    return b"V"


def build_capability(date: int) -> bytes:
    """VF, without cookie: asks whether the relay has the capability of that date (see capabilities)."""
    return b"VF %08d" % date


def build_error(code: int) -> bytes:
    """The body of an error reply: b"E50"."""
    return b"E%d" % code


def _seconds(ttl: int) -> int:
    # 2,000,000,000 is the largest that was tried on a relay (facts section 7); 0 is refused with E3.
    if not 1 <= ttl <= 2_000_000_000:
        raise CodecError(f"ttl {ttl} s is not in 1..2000000000")
    return ttl
