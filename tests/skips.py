"""The reasons for which a test may skip, and what to do so that it runs. A skip for any other reason fails the run."""

from __future__ import annotations

import re

# A regular expression for the reason, as `pytest.skip` says it, and the remedy. The order is that of the table at the end of a run.
ALLOWED = (
    (r"needs root\b.*", "run as root"),
    (r"p4c-bm2-ss is not installed", "p4c with its BMv2 back end, from source"),
    (r"simple_switch(_CLI)? is not installed", "BMv2 (behavioral-model), from source"),
    (r"bf-p4c is not installed", "p4c with its Tofino back end, or Intel's P4 Studio"),
    (r"ptf is not installed", "the Python package of P4's packet test framework, with a switch"),
    (r"(OpenSIPS|opensips) is not installed( with WebSockets)?", "OpenSIPS 3.4 or newer, on PATH"),
    (r"rtpproxy is not installed", "rtpproxy 3.2 or newer, on PATH"),
    (r"promtool is not installed", "the Debian package prometheus"),
    (r"kvazaar is not installed", "kvazaar, from source"),
    (r"siphon-rtp is not installed", "siphon-rtp, from source"),
    (r"(buildah|podman) is not installed", "make oci-test"),
    (r"SHUNT_PTF_\w+ is not set \(docs/switch.md\)", "a switch"),
    (r"the program on the switch has no conferences", "a build with conferences on the switch"),
    (r"the kernel has no (802\.1Q interfaces|BPF file system)", "a kernel that has"),
    (r"needs two processors", "a machine with two or more"),
    (r"runs with DEB_TEST=1", "make deb-test"),
    (r"runs with OCI_TEST=1", "make oci-test"),
    (r"runs with SHUNT_RTPENGINE_SUITE", "set it to the folder of rtpengine's source"),
    (r"npm cannot fetch the SIP user agents", "npm and its registry, then `make setup-all`"),
)


def remedy(reason: str) -> str | None:
    """What makes a test run that skipped for this reason; None if the reason is not allowed."""
    return next((what for pattern, what in ALLOWED if re.fullmatch(pattern, reason)), None)
