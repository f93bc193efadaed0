"""The failures of tests/e2e, with rtpengine and each SIP server."""

from __future__ import annotations

import pytest

from tests.e2e import test_failures

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

# What pytest finds here is run with the fixtures of this folder.
globals().update({name: test for name, test in vars(test_failures).items() if name.startswith("test_")})
