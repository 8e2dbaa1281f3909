#!/bin/sh
# The state, the keys and the user stay, after a purge too: a node's disk is one vote of the
# cluster, and a file must not fall to the next user with the same number.
set -e
case "$1" in
remove | purge | 0)
  if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
  for dir in /var/lib/bivouac /etc/bivouac; do
    if [ -d "$dir" ]; then echo "Bivouac: $dir stays. Remove it by hand when it is not needed."; fi
  done
  ;;
esac
