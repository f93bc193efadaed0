#!/usr/bin/env bash
# Puts what `shunt` needs at run time, in the versions of requirements.lock, into a folder: libraries.sh PYTHON FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 folder=$2
rm -rf "$folder"
mkdir -p "$folder"
needed=$("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")')
# Wheels only: what is built here would not fit every processor.
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-compile --target "$folder" \
  --constraint requirements.lock --requirement /dev/stdin <<< "$needed"
# Programs and tests of libraries; records that name this machine's folders.
rm -rf "${folder:?}/bin"
find "$folder" -name direct_url.json -delete
find "$folder" -type d -name __pycache__ -prune -exec rm -rf {} +
touch "$folder/.ready"
