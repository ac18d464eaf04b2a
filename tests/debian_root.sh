#!/usr/bin/env bash
# Runs a command in a Debian root with Python VERSION; the first call makes the root with debootstrap.
# Usage: bash tests/debian_root.sh VERSION ROOT COMMAND [ARGUMENTS]       (as root; tests/other_python.sh calls it)
#
# pip in the root has the settings and the certificates of this machine ($PIP_*, $SSL_CERT_FILE, pip's files). The folder
# ../shared beside the checkout, if there is one, is /lexvl/shared there, read-only; COMMAND starts in /lexvl.
# $DEBIAN_MIRROR replaces the mirror from which this machine installs.
set -euo pipefail

refuse() { # SENTENCE
  echo "error: $1" >&2
  exit 1
}

version=$1 dir=$2 packages=python$1,python$1-venv,ca-certificates,git
case $version in
  3.11) suite=bookworm packages=$packages,python3-distutils ;; # debootstrap does not find who provides python3.11-distutils
  3.13) suite=trixie ;;
  3.14) suite=forky ;;
  *) refuse "python$version is not on PATH, and there is no Debian root for it (only for 3.11, 3.13 and 3.14); install it" ;;
esac
[ "$(id -u)" = 0 ] || refuse "python$version is not on PATH, and only root can make a Debian root for it; install it or become root"
command -v debootstrap >/dev/null || refuse "python$version is not on PATH, and debootstrap is missing: apt-get install debootstrap"

# In a mount namespace of its own, the mounts below end with this process, however it ends: nothing
# stays to be unmounted, and deleting the root cannot reach through them.
if [ -z "${LEXVL_NAMESPACE:-}" ]; then
  unshare --mount true 2>/dev/null || refuse "this machine allows no mounts (unshare --mount), which a Debian root needs"
  LEXVL_NAMESPACE=1 exec unshare --mount --propagation private bash "${BASH_SOURCE[0]}" "$@"
fi
shift 2

make_root() {
  local mirror script=$suite
  echo "making a Debian root ($suite, Python $version) in $dir" >&2
  mirror=${DEBIAN_MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 || true)}
  [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid # the scripts of all releases since are the same
  rm -rf --one-file-system "$dir.part"
  mkdir -p "$(dirname "$dir")"
  # Without a mirror debootstrap takes its own default, but then it must know the release.
  # shellcheck disable=SC2086
  debootstrap --variant=minbase --include="$packages" \
    "$suite" "$dir.part" ${mirror:+$mirror $script} >"$dir.log" 2>&1 ||
    refuse "debootstrap failed: $(tail -n 1 "$dir.log") (all of it: $dir.log)"
  mv "$dir.part" "$dir"
}

copy_settings() { # pip's files and every certificate that they or the environment name, to the same places in the root
  local file
  for file in /etc/pip.conf "$HOME/.pip/pip.conf" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"; do
    [ ! -f "$file" ] || install -D -m 644 "$file" "$dir/${file/#$HOME//root}"
  done
  if [ -f "${PIP_CONFIG_FILE:-}" ]; then install -D -m 644 "$PIP_CONFIG_FILE" "$dir/lexvl/pip.conf"; fi
  for file in "${SSL_CERT_FILE:-}" "${PIP_CERT:-}" \
    $(find "$dir/etc/pip.conf" "$dir/root" "$dir/lexvl/pip.conf" -maxdepth 3 -name pip.conf -exec sed -n 's/^ *cert *= *//p' {} + 2>/dev/null); do
    if [ -f "$file" ]; then install -D -m 644 "$file" "$dir/$file"; fi
  done
  for file in /etc/resolv.conf /etc/hosts; do install -m 644 "$file" "$dir$file"; done
}

mount_all() {
  local shared
  shared=$(dirname "${BASH_SOURCE[0]}")/../../shared
  mount -t proc proc "$dir/proc"
  mount --rbind /sys "$dir/sys"
  mount --rbind /dev "$dir/dev"
  if [ -d "$shared" ]; then
    mkdir -p "$dir/lexvl/shared"
    mount --bind "$shared" "$dir/lexvl/shared"
    mount -o remount,bind,ro "$dir/lexvl/shared"
  fi
  # Its packages are for this machine's processor, as the root is.
  if [ -d "${PIP_FIND_LINKS:-}" ]; then
    mkdir -p "$dir/$PIP_FIND_LINKS"
    mount --bind "$PIP_FIND_LINKS" "$dir/$PIP_FIND_LINKS"
  fi
}

settings() { # prints NAME=VALUE of the variables that the root shares with this machine, one per line
  local name
  for name in $(compgen -e); do
    case $name in
      PIP_CONFIG_FILE) echo "$name=/lexvl/pip.conf" ;;
      PIP_* | SSL_CERT_FILE | http_proxy | https_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY) echo "$name=${!name}" ;;
    esac
  done
}

[ -d "$dir" ] || make_root
mkdir -p "$dir/lexvl"
copy_settings
mount_all
clean=(HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8)
while IFS= read -r line; do clean+=("$line"); done < <(settings)
# shellcheck disable=SC2016
exec chroot "$dir" env -i "${clean[@]}" bash -c 'cd /lexvl && exec "$@"' - "$@"
