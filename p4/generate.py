#!/usr/bin/env python3
"""Renews p4/generated: the schema that bf-p4c writes for the program, and the hash functions of the hashed builds."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import compile as p4_compile

# What of which build is kept. Sizes are small: neither names nor hash functions depend on them. Of conferences, which take the compiler long, it
# is the builds of builds.yaml, where `make p4` leaves them.
_SMALL = {"RELAY_SIZE": "4096", "RELAY6_SIZE": "4096"}
_MANIFEST = p4_compile.GENERATED / "manifest.json"
_OUT = p4_compile.HERE.parent / "build" / "p4"
_SCHEMAS = {
    "relay.tofino1.bf-rt.json": ("tofino", {}),
    "relay.tofino2.bf-rt.json": ("tofino2", {}),
    "relay-counted.tofino1.bf-rt.json": ("tofino", {"COUNTED": "1"}),
}
_BUILDS = {f"{name}.bf-rt.json": name.replace(".", "-") for name in ("conference.tofino1", "conference.tofino2", "conference-lr.tofino2")}
_HASHES = {
    "hash48.tofino1.context.json": ("tofino", {}),
    "hash32.tofino1.context.json": ("tofino", {"RELAY_KEY": "hash32"}),
    "hash48.tofino2.context.json": ("tofino2", {}),
    # As a site's own polynomial makes them; these two are nobody's.
    "hash48-own.tofino1.context.json": ("tofino", {"POLYNOMIAL": "0x8e31cfcb78ba4ebf"}),
    "hash32-own.tofino1.context.json": ("tofino", {"RELAY_KEY": "hash32", "POLYNOMIAL": "0xe54bb603"}),
}


def reduced(context: dict[str, Any]) -> dict[str, Any]:
    """Of a context.json: the relay tables' keys and the hash under which they are stored."""
    tables = []
    for table in context["tables"]:
        stages = [stage for stage in table.get("match_attributes", {}).get("stage_tables", []) if stage.get("stage_table_type") == "proxy_hash_match"]
        if not stages:
            continue
        kept = [
            {
                "stage_table_type": "proxy_hash_match",
                "stage_number": stage["stage_number"],
                "proxy_hash_bit_width": stage["proxy_hash_bit_width"],
                "proxy_hash_algorithm": stage["proxy_hash_algorithm"],
                "proxy_hash_function": {
                    "hash_bits": [
                        {
                            "hash_bit": bit["hash_bit"],
                            "seed": bit["seed"],
                            "bits_to_xor": [{"field_name": source["field_name"], "field_bit": source["field_bit"]} for source in bit["bits_to_xor"]],
                        }
                        for bit in stage["proxy_hash_function"]["hash_bits"]
                    ]
                },
            }
            for stage in stages
        ]
        keys = [{"name": key["name"], "bit_width": key["bit_width"]} for key in table["match_key_fields"]]
        tables.append({"name": table["name"], "match_key_fields": keys, "match_attributes": {"stage_tables": kept}})
    return {"tables": tables}


def _build(name: str) -> p4_compile.Build:
    if name in _BUILDS:
        return next(build for build in p4_compile.read_builds() if build.name == _BUILDS[name])
    chip, options = {**_SCHEMAS, **_HASHES}[name]
    return p4_compile.Build(name, chip, {**_SMALL, **options})


def _made(name: str, out: Path) -> str:
    """The content of one generated file, from what the compiler left."""
    if name not in _HASHES:
        content = json.loads((out / "bfrt.json").read_text())
    else:
        content = reduced(json.loads((out / "pipe" / "context.json").read_text()))
    return json.dumps(content, separators=(",", ":")) + "\n"


def _before() -> dict[str, Any]:
    try:
        return dict(json.loads(_MANIFEST.read_text()))
    except (OSError, ValueError):
        return {}


def main() -> int:
    try:
        compiler = p4_compile.find_compiler()
    except p4_compile.NoCompiler as reason:
        print(reason, file=sys.stderr)
        return 1
    p4_compile.GENERATED.mkdir(exist_ok=True)
    before = _before()
    names = [*_SCHEMAS, *_BUILDS, *_HASHES]
    made_from = {name: p4_compile.fingerprint(compiler, _build(name)) for name in names}

    def kept(name: str) -> bool:
        path = p4_compile.GENERATED / name
        return before.get("made_from", {}).get(name) == made_from[name] and path.exists() and before["files"].get(name) == _hash(path.read_text())

    stale: dict[str, list[str]] = {}
    for name in names:
        if not kept(name):
            stale.setdefault(made_from[name], []).append(name)
    with tempfile.TemporaryDirectory() as scratch:

        def one(alike: list[str]) -> None:
            build = _build(alike[0])
            out = _OUT / build.name if alike[0] in _BUILDS else Path(scratch) / build.name
            reason, _ = p4_compile.make(compiler, build, out)
            if reason is not None:
                raise RuntimeError(f"{alike[0]}: {reason}")
            for name in alike:
                (p4_compile.GENERATED / name).write_text(_made(name, out))
                print(name, flush=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, stale.values()))
    manifest = {
        "about": "Generated by `make p4-generated`; not to be edited. `sources` is the SHA-256 of the program's files, `files` that of what was made of them, "
        "`made_from` that of all that each depends on: it is made again when that has changed.",
        "compiler": p4_compile.compiler_version(compiler),
        "sources": p4_compile.source_hash(),
        "files": {name: _hash((p4_compile.GENERATED / name).read_text()) for name in names},
        "made_from": made_from,
    }
    _MANIFEST.write_text(json.dumps(manifest, indent=1) + "\n")
    return 0


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
