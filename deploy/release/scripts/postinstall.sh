#!/bin/sh
# Starts and restarts nothing: the order in a cluster is the operator's.
# dpkg calls "configure [OLD VERSION]", rpm "1" for the first install and "2" for an upgrade.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
case "$1 $2" in
"configure " | "1 ")
  cat <<'END'
Bivouac is installed, and not started. Next:
  cp /usr/share/bivouac/config/node.hcl /etc/bivouac/node.hcl   # and edit it
  bivouac tls init --dir tls                                    # once, on one machine
  runuser -u bivouac -- bivouac server --config /etc/bivouac/node.hcl --check
  systemctl enable --now bivouac
All steps: /usr/share/doc/bivouac/README.md
END
  ;;
"configure "* | "2 ")
  cat <<'END'
Bivouac's files are new. A node that runs goes on with the old program until it is restarted:
  systemctl restart bivouac   # one node after the other, each after the last one's /ready is 200
What to do before an upgrade is in /usr/share/doc/bivouac/CHANGELOG.md.
END
  ;;
esac
