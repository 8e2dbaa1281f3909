#!/bin/sh
# Installs the packages that the lock file in FROM pins into TO, once: install.sh FROM TO.
# npm runs no script of a package. Without npm it says so and ends well.
set -eu
from=$1 to=$2
if ! command -v npm >/dev/null 2>&1; then
  echo "npm is not there: the packages of $from are not installed, and their tests are skipped" >&2
  exit 0
fi
mkdir -p "$to"
exec 9>"$to/.lock"
flock 9
cmp -s "$from/package-lock.json" "$to/.installed" && exit 0
echo "installing the packages of $from, once"
cp "$from/package.json" "$from/package-lock.json" "$to/"
(cd "$to" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error 9>&-)
cp "$from/package-lock.json" "$to/.installed"
