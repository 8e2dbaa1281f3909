#!/bin/sh
# The network of the sandboxes on a Nomad client: a docker network of their own and
# the firewall's rules for it. Run as root, before Nomad starts:
#
#   sandbox-network.sh up       makes both, or mends them; it may be repeated
#   sandbox-network.sh check    exits 1 and says what is missing
#   sandbox-network.sh down     removes both; no container may be left in it
#
# A sandbox can open connections to what the machine routes to, and can't open any to
# another sandbox, to this machine, to 169.254.0.0/16 (a cloud's metadata) and to what
# REFUSE names. Its ports take TCP, and only from NODES if that is set.
#
# The environment (bivouac-sandbox-network.service reads /etc/bivouac/sandbox-network.env):
#
#   NETWORK  docker's name of it: nomad { docker_network } of the nodes. Default: bivouac
#   BRIDGE   its interface, of at most 15 characters. Default: bivouac0
#   SUBNET   its addresses, as 10.201.0.0/16. Default: docker chooses
#   NODES    the addresses of the Bivouac nodes, with spaces between. Default: all
#   REFUSE   networks that sandboxes can't reach, with spaces between: those of Nomad,
#            Vault, the Bivouac nodes, and the other clients. Default: none
#   API      where sandboxes reach the Bivouac nodes, whatever is refused: the hosts and
#            ports of sandboxes { api_urls }, as 10.0.0.11:8440. Default: nowhere
#   DNS      name servers that are in what is refused, as a cloud's 169.254.169.253
set -eu

NETWORK=${NETWORK:-bivouac} BRIDGE=${BRIDGE:-bivouac0}
SUBNET=${SUBNET:-} NODES=${NODES:-} REFUSE=${REFUSE:-} DNS=${DNS:-} API=${API:-}
PATH=$PATH:/usr/sbin:/sbin

fail() { echo "sandbox-network: $*" >&2; exit 1; }

# The chains: what docker forwards, what is for this machine, and all that goes in. The
# last is in mangle: in filter's OUTPUT a port's packet does not yet have our interface.
FORWARD=$BRIDGE-FORWARD INPUT=$BRIDGE-INPUT INTO=$BRIDGE-INTO

rules() {
  known='-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN'
  echo '*filter'
  echo ":$FORWARD - [0:0]"
  echo ":$INPUT - [0:0]"
  if [ "$1" = 6 ]; then
    # Sandboxes have no IPv6.
    echo "-A $FORWARD -j DROP"
  else
    echo "-A $FORWARD $known"
    echo "-A $FORWARD -i $BRIDGE -o $BRIDGE -j DROP"
    for a in $DNS; do
      for chain in "$FORWARD -i $BRIDGE" "$INPUT"; do
        echo "-A $chain -d $a -p udp --dport 53 -j RETURN"
        echo "-A $chain -d $a -p tcp --dport 53 -j RETURN"
      done
    done
    for a in $API; do
      for chain in "$FORWARD -i $BRIDGE" "$INPUT"; do
        echo "-A $chain -d ${a%:*} -p tcp --dport ${a##*:} -j RETURN"
      done
    done
    for a in 169.254.0.0/16 $REFUSE; do echo "-A $FORWARD -i $BRIDGE -d $a -j DROP"; done
    for a in $NODES; do echo "-A $FORWARD -o $BRIDGE -s $a -j RETURN"; done
    [ -z "$NODES" ] || echo "-A $FORWARD -o $BRIDGE -j DROP"
    echo "-A $INPUT $known"
  fi
  echo "-A $INPUT -j DROP"
  echo COMMIT
  echo '*mangle'
  echo ":$INTO - [0:0]"
  if [ "$1" = 4 ]; then
    echo "-A $INTO $known"
    # Nomad publishes every port over UDP as well.
    echo "-A $INTO -p tcp -j RETURN"
  fi
  echo "-A $INTO -j DROP"
  echo COMMIT
}

# jumps are where the chains are entered: table, chain, direction, ours.
jumps() {
  entry=FORWARD
  [ "$1" = 6 ] || entry=DOCKER-USER
  echo "filter $entry -i $FORWARD"
  echo "filter $entry -o $FORWARD"
  echo "filter INPUT -i $INPUT"
  echo "mangle POSTROUTING -o $INTO"
}

# tables prints which of iptables and ip6tables there are, as "4" and "6".
tables() {
  echo 4
  ! ip6tables -w -S >/dev/null 2>&1 || echo 6
}

tool() { if [ "$1" = 6 ]; then echo ip6tables; else echo iptables; fi; }

# jump checks, inserts or deletes the jump that was read from jumps.
jump() { "$(tool "$1")" -w -t "$table" "$2" "$entry" "$way" "$BRIDGE" -j "$ours"; }

network_option() { docker network inspect --format "{{index .Options \"com.docker.network.bridge.$1\"}}" "$NETWORK"; }

check_network() {
  docker network inspect "$NETWORK" >/dev/null 2>&1 || fail "there is no docker network $NETWORK"
  [ "$(network_option name)" = "$BRIDGE" ] || fail "the docker network $NETWORK is not on the interface $BRIDGE: remove it, or set BRIDGE"
  [ "$(network_option enable_icc)" = false ] || fail "the docker network $NETWORK lets containers reach each other: remove it"
}

up() {
  iptables -w -S DOCKER-USER >/dev/null 2>&1 || fail "there is no chain DOCKER-USER: docker does not run, or does not use iptables"
  # The rules are there before anything can be in the network.
  for t in $(tables); do
    rules "$t" | "$(tool "$t")"-restore -w --noflush
    jumps "$t" | while read -r table entry way ours; do
      jump "$t" -C 2>/dev/null || jump "$t" -I
    done
  done
  docker network inspect "$NETWORK" >/dev/null 2>&1 ||
    docker network create --driver bridge ${SUBNET:+--subnet "$SUBNET"} --opt "com.docker.network.bridge.name=$BRIDGE" \
      --opt com.docker.network.bridge.enable_icc=false "$NETWORK" >/dev/null
  check_network
}

check() {
  check_network
  for t in $(tables); do
    jumps "$t" | while read -r table entry way ours; do
      jump "$t" -C 2>/dev/null || fail "$(tool "$t") has no jump from $entry to $ours: run up"
      "$(tool "$t")" -w -t "$table" -S "$ours" | grep -q DROP || fail "$(tool "$t") has no rules in $ours: run up"
    done
  done
}

down() {
  ! docker network inspect "$NETWORK" >/dev/null 2>&1 || docker network rm "$NETWORK" >/dev/null
  for t in $(tables); do
    jumps "$t" | while read -r table entry way ours; do
      while jump "$t" -D 2>/dev/null; do :; done
      "$(tool "$t")" -w -t "$table" -F "$ours" 2>/dev/null || continue
      "$(tool "$t")" -w -t "$table" -X "$ours" 2>/dev/null || true # entered twice
    done
  done
}

case ${1:-} in
  up) up ;;
  check) check ;;
  down) down ;;
  *) fail "say up, check or down" ;;
esac
