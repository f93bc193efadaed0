"""TLS for BF Runtime: what the configuration's files mean to a client of gRPC."""

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
