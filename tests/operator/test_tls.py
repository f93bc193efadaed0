"""The REST API over HTTPS, and `shunt` as its client."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from shunt.api.server import ApiServer
from shunt.config.load import ConfigError, loads
from shunt.config.model import Api, ApiTls
from tests.operator.stand_in import StandIn

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "api.crt", folder / "api.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def api(certificate: Path, key: Path) -> ApiServer:
    return ApiServer(StandIn(), Api.model_construct(listen="127.0.0.1:0", token=None, token_file=None, tls=ApiTls(certificate=str(certificate), key=str(key))))


async def test_it_answers_by_tls_and_not_in_the_clear(files: tuple[Path, Path]) -> None:
    server = api(*files)
    await server.start()
    try:
        trusted = ssl.create_default_context(cafile=str(files[0]))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"https://{server.listen}/v1/status", ssl=trusted) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{server.listen}/v1/status")
        env = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "SSL_CERT_FILE": str(files[0])}
        command = [sys.executable, "-m", "shunt.cli.main", "calls", "--json", "--api", f"https://{server.listen}"]
        done = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        out, said = await done.communicate()
        assert done.returncode == 0 and json.loads(out)["calls"], said.decode()
        done = await asyncio.create_subprocess_exec(*command, env=env | {"SSL_CERT_FILE": "/dev/null"}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        _, said = await done.communicate()
        assert done.returncode == 3 and b"certificate" in said.lower(), "whom nobody vouches for is not asked"
    finally:
        await server.close()


def test_what_is_no_certificate_is_said_at_the_start(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"api.tls: .*: No such file"):
        api(tmp_path / "none", files[1])
    with pytest.raises(ValueError, match=r"api.tls: "):
        api(files[0], files[0])
    with pytest.raises(ConfigError, match=r"api.tls.key: this key is missing"):
        loads("relays: [{name: a, socket: 'udp:127.0.0.1:22222'}]\napi: {tls: {certificate: /etc/a.crt}}\n")
