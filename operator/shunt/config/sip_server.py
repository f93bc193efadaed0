"""How long a SIP server waits for its media relay, from the file of an OpenSIPS or Kamailio."""

from __future__ import annotations

import re

_MODULE = re.compile(r'^\s*loadmodule\s+"(?:[^"]*/)?(rtpproxy|rtpengine)\.so"', re.MULTILINE)
_PARAMETER = re.compile(r'^\s*modparam\(\s*"(?:rtpproxy|rtpengine)"\s*,\s*"(\w+)"\s*,\s*"?([0-9.]+)"?\s*\)', re.MULTILINE)
# Parameters of one try, with their unit in ms: rtpproxy of OpenSIPS and of Kamailio, rtpengine of OpenSIPS and of Kamailio.
_UNITS = {"rtpproxy_timeout": 1000, "rtpproxy_tout": 1000, "rtpengine_tout": 1000, "rtpengine_tout_ms": 1}
_DEFAULT_MS = 1000
"""The same of all four modules."""


def timeout_ms(text: str) -> int | None:
    """Milliseconds that the SIP server waits for the answer to one try; None: it loads no module for a media relay."""
    if not _MODULE.search(text):
        return None
    found = [round(float(value) * _UNITS[name]) for name, value in _PARAMETER.findall(text) if name in _UNITS]
    return min(found, default=_DEFAULT_MS)


def compared(own_ms: int, text: str, name: str) -> tuple[str, bool] | None:
    """What is wrong with control.sip_timeout_ms beside a SIP server's file, and whether it is an error; None: nothing."""
    wanted = timeout_ms(text)
    if wanted is None:
        return f"{name}: no module rtpproxy or rtpengine is loaded", True
    if own_ms > wanted:
        return f"{name}: waits for {wanted} ms, and control.sip_timeout_ms is {own_ms}: under overload the agent would execute commands that the SIP server has given up", True
    if own_ms < wanted:
        return f"{name}: waits for {wanted} ms, and control.sip_timeout_ms is {own_ms}: the agent would drop commands that the SIP server still waits for", False
    return None
