#!/bin/sh
# Runs before the files are unpacked: /etc/bivouac belongs to the group.
set -e
getent group bivouac >/dev/null || groupadd --system bivouac
getent passwd bivouac >/dev/null ||
  useradd --system --gid bivouac --home-dir /var/lib/bivouac --no-create-home \
    --shell /usr/sbin/nologin bivouac
