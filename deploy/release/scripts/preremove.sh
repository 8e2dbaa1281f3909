#!/bin/sh
# dpkg calls "remove" or "upgrade", rpm "0" for the removal. An upgrade stops nothing.
set -e
case "$1" in
remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl disable --now bivouac.service || true
    # Its rules hold until the next start of the machine. Enabled, it would keep Nomad from starting.
    systemctl disable bivouac-sandbox-network.service || true
  fi
  ;;
esac
