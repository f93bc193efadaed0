#!/usr/bin/env bash
# Builds the Debian package with dpkg-deb: deb.sh FILE VERSION ARCHITECTURE PYTHON
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
file=$1 version=$2 architecture=$3 python=$4
echo "==> $file"
tree=$(mktemp -d build/packaging/deb.XXXXXX)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
packaging/install.sh "$tree" /usr "$python"
mkdir "$tree/DEBIAN"
install -m 755 packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$tree/DEBIAN"
(cd "$tree" && find etc -type f -printf '/%p\n') > "$tree/DEBIAN/conffiles"
doc=$tree/usr/share/doc/shunt
install -m 644 packaging/debian/copyright "$doc/copyright"
# Of the commit, so that the same one makes the same package.
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
sed -e "s|@VERSION@|$version|; s|@DATE@|$date|" packaging/debian/changelog.in | gzip -9n > "$doc/changelog.gz"
install -D -m 644 packaging/debian/lintian-overrides "$tree/usr/share/lintian/overrides/shunt"
find "$tree/usr/lib/shunt" -name '*.so' -exec strip --strip-unneeded {} +
(cd "$tree" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) > "$tree/DEBIAN/md5sums"
size=$(du -sk --exclude=DEBIAN "$tree" | cut -f1)
minor=$("$python" -c 'import sys; print(sys.version_info.minor)')
# The newest of the C library's versions that the daemons' symbols name.
libc=$(objdump -T "$tree"/usr/lib/shunt/bin/shunt-* | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
sed -e "s|@VERSION@|$version|; s|@ARCHITECTURE@|$architecture|; s|@SIZE@|$size|; s|@LIBC@|$libc|; s|@PYTHON@|3.$minor|; s|@NEXT_PYTHON@|3.$((minor + 1))|" \
  packaging/debian/control.in > "$tree/DEBIAN/control"
dpkg-deb --root-owner-group -Zxz --build "$tree" "$file.part" > /dev/null
mv "$file.part" "$file"
