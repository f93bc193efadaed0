"""The session description in the body of a SIP message (RFC 3261 section 7.4, RFC 2046, RFC 5621). Pure functions."""

from __future__ import annotations

import email
import re
from email.message import Message

ACCEPTED = "application/sdp, multipart/mixed, multipart/alternative, multipart/related"
"""For the Accept header."""
_SLASH = re.compile(r"^([^;/]*?)\s*/\s*")  # SIP allows white space around it (RFC 3261 section 25.1)


class Unsupported(Exception):
    """A body that has to be understood is not (SIP status 415)."""


def session_description(body: bytes, content_type: str | None, disposition: str | None = None, encoding: str | None = None) -> str | None:
    """Returns the SDP of a body, or None if it has none and need not have any.

    content_type, disposition, encoding: the headers Content-Type, Content-Disposition and Content-Encoding. Raises Unsupported.
    """
    if not body.strip():
        return None
    headers = [("Content-Type", _SLASH.sub(r"\1/", content_type or "")), ("Content-Disposition", disposition), ("Content-Encoding", encoding)]
    head = "".join(f"{name}: {' '.join(value.split())}\r\n" for name, value in headers if value)
    whole = email.message_from_bytes(head.encode(errors="replace") + b"\r\n" + body)
    found = _find(whole)
    if found is None and not whole.is_multipart() and _handling(whole) != "optional":
        raise Unsupported(f"a body of type {content_type or 'unknown'}; accepted are {ACCEPTED}")
    return found


def _find(part: Message) -> str | None:
    kind = part.get_content_type()
    if kind.startswith("multipart/") and part.is_multipart():
        found = [text for inner in part.get_payload() if isinstance(inner, Message) and (text := _find(inner)) is not None]
        if not found:
            return None
        return found[-1] if kind == "multipart/alternative" else found[0]  # the last alternative is the best (RFC 2046 section 5.1.4)
    disposition = str(part.get("Content-Disposition", "session")).partition(";")[0].strip().lower()
    encoded = str(part.get("Content-Encoding", "identity")).strip().lower() != "identity"
    if kind == "application/sdp" and disposition == "session" and not encoded:
        content = part.get_payload(decode=True)
        return content.decode(errors="replace") if isinstance(content, bytes) else None
    if _handling(part) == "required":
        raise Unsupported(f"a part of type {kind} is not supported (handling=required)")
    return None


def _handling(part: Message) -> str:
    value = part.get_param("handling", "", "Content-Disposition")
    return value.lower() if isinstance(value, str) else ""
