#!/usr/bin/env bash
# Builds the images with buildah or podman: images.sh PACKAGE VERSION [OPTION...]; the options go to the builder.
set -euo pipefail
cd "$(dirname "$0")/../.."
package=$1 version=$2
shift 2
builder=$(command -v buildah || command -v podman) || { echo "images are built by buildah or podman: neither is on PATH" >&2; exit 1; }
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
context=build/packaging/oci
rm -rf "$context"
mkdir -p "$context"
cp "$package" "$context/shunt.deb"
cp packaging/oci/readyz "$context"
checksum=$(sha256sum < "$package")
for daemon in softswitch relay agent operator edge; do
  echo "==> image shunt-$daemon"
  # The format of docker: that of OCI has no HEALTHCHECK.
  "$builder" build --quiet --layers --format docker --target "$daemon" --build-arg VERSION="$version" --build-arg REVISION="$revision" \
    --build-arg PACKAGE_SHA256="${checksum%% *}" --tag "localhost/shunt-$daemon:$version" --tag "localhost/shunt-$daemon:latest" --file packaging/oci/Containerfile "$@" "$context"
done
