#!/usr/bin/env bash
# Installs everything below a root: install.sh ROOT PREFIX PYTHON. ROOT is empty for this machine itself.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
root=$1 prefix=$2 python=$3
home=$prefix/lib/shunt
doc=$root$prefix/share/doc/shunt
site=$home/lib/$("$python" -c 'import sys; print(f"python{sys.version_info.major}.{sys.version_info.minor}")')/site-packages

# A virtualenv of its own: no library of the system's can take the place of a pinned one.
rm -rf "$root${home:?}"
mkdir -p "$root$home"
"$python" -m venv --without-pip "$root$home"
sed -i '/^command = /d' "$root$home/pyvenv.cfg"
rm -f "$root$home"/bin/[Aa]ctivate*
mkdir -p "$root$site"
cp -R build/packaging/libraries/. operator/shunt "$root$site"
rm -rf "$root$site/.ready"
find "$root$site" -name __pycache__ -prune -exec rm -rf {} +
printf '%s\n' "${SHUNT_COMMIT:-unknown}" > "$root$site/shunt/COMMIT"
cp packaging/shunt-command "$root$home/bin/shunt"
sed -i "1s|.*|#!$home/bin/python3 -I|" "$root$home/bin/shunt"
chmod 755 "$root$home/bin/shunt"
for daemon in target/release/shunt-{softswitch,agent,relay,edge,mixer}; do
  install -s -m 755 "$daemon" "$root$home/bin"
done
# Readable by the agent's user, whatever the wheels said.
chmod -R u+rwX,go+rX,go-w "$root$home"
install -d "$root$prefix/bin"
ln -sf ../lib/shunt/bin/shunt "$root$prefix/bin/shunt"

install -d "$root$prefix/lib/systemd/system" "$root$prefix/lib/sysusers.d"
packaging/units.sh "$prefix" "$(realpath "$root$prefix/lib/systemd/system")"
install -m 644 packaging/systemd/shunt.sysusers "$root$prefix/lib/sysusers.d/shunt.conf"

for page in build/packaging/manual/*.[15]; do
  section=${page##*.}
  install -d "$root$prefix/share/man/man$section"
  gzip -9n < "$page" > "$root$prefix/share/man/man$section/$(basename "$page").gz"
done

install -D -m 644 build/packaging/completion/shunt.bash "$root$prefix/share/bash-completion/completions/shunt"
install -D -m 644 build/packaging/completion/shunt.zsh "$root$prefix/share/zsh/vendor-completions/_shunt"

install -d "$doc/opensips-config" "$doc/examples" "$root$prefix/share/shunt/grafana" "$root$prefix/share/shunt/prometheus"
install -m 644 README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md "$doc"
find docs -type f -exec install -D -m 644 {} "$doc/{}" \;
install -m 644 opensips-config/* "$doc/opensips-config"
install -m 644 opensips-config/shunt.yaml opensips-config/rooms.yaml packaging/standby.yaml "$doc/examples"
install -m 644 packaging/grafana/* "$root$prefix/share/shunt/grafana"
install -m 644 packaging/prometheus/* "$root$prefix/share/shunt/prometheus"
install -D -m 644 bench/README.md "$doc/bench/README.md"
find sipp-scenarios p4 -name __pycache__ -prune -o -type f -exec install -D -m 644 {} "$root$prefix/share/shunt/{}" \;

# An operator's configuration is never written over.
install -d -m 755 "$root/etc/shunt"
[ -e "$root/etc/logrotate.d/shunt" ] || install -D -m 644 packaging/logrotate "$root/etc/logrotate.d/shunt"
[ -e "$root/etc/shunt/shunt.yaml" ] || install -m 640 opensips-config/shunt.yaml "$root/etc/shunt/shunt.yaml"

if [ -z "$root" ]; then
  # The agent's user cannot write here. A package has no bytecode: it compiles where it is installed.
  "$home/bin/python3" -m compileall -q "$site"
  echo "Installed in $prefix. Next: systemd-sysusers; chgrp shunt /etc/shunt/shunt.yaml; edit it;"
  echo "systemctl daemon-reload; systemctl enable --now shunt-softswitch shunt-agent shunt-operator"
fi
