#!/usr/bin/env bash
# Writes the systemd units for an installation: units.sh PREFIX FOLDER
set -euo pipefail
cd "$(dirname "$0")/systemd"
prefix=$1 folder=$2
mkdir -p "$folder"
for unit in *.service.in; do
  sed -e "/^@SANDBOX@$/{r sandbox.conf" -e "d}" -e "s|@PREFIX@|$prefix|g" "$unit" > "$folder/${unit%.in}"
done
