"""Media that is encoded once for all workers and runs: files in build/test-cache, named by what their content depends on."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import av

FOLDER = Path(__file__).resolve().parents[2] / "build" / "test-cache"
P = ParamSpec("P")
T = TypeVar("T")


def cached(*modules: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator that keeps a function's results, by its arguments, FFmpeg's version, and the text of its module and of these (paths)."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        texts = [Path(name).read_bytes() for name in (inspect.getfile(make), *modules)]

        @functools.wraps(make)
        def found(*args: P.args, **kwargs: P.kwargs) -> T:
            key = hashlib.sha256(b"\0".join([repr((make.__qualname__, args, sorted(kwargs.items()), av.library_versions)).encode(), *texts])).hexdigest()[:32]
            path = FOLDER / key
            if not path.exists():
                FOLDER.mkdir(parents=True, exist_ok=True)
                with (FOLDER / f"{key}.lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
                    if not path.exists():
                        part = path.with_suffix(f".{os.getpid()}")
                        part.write_bytes(pickle.dumps(make(*args, **kwargs)))
                        part.replace(path)
            result: T = pickle.loads(path.read_bytes())
            return result

        return found

    return decorate
