"""TLS for BF Runtime: what the configuration's files mean to gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import grpc


class Files(Protocol):
    """PEM files, as shunt.config.model.Tls names them."""

    ca_file: str | None
    certificate_file: str | None
    key_file: str | None


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"tls: {path}: {error.strerror}") from None


def client_credentials(files: Files | None) -> grpc.ChannelCredentials | None:
    """What a client shows and believes; None without TLS. Raises ValueError naming a file that cannot be read."""
    if files is None:
        return None
    return grpc.ssl_channel_credentials(_read(files.ca_file), _read(files.key_file), _read(files.certificate_file))


def server_credentials(files: Files) -> grpc.ServerCredentials:
    """What a server shows; with a CA it serves only clients whose certificate that CA signed. Raises ValueError."""
    key, certificate, authority = _read(files.key_file), _read(files.certificate_file), _read(files.ca_file)
    if key is None or certificate is None:
        raise ValueError("tls: a server needs certificate_file and key_file")
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)
