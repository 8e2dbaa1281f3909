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
#   DNS      name servers that are in what is refused, as a cloud's 169.254.169.253
set -eu

NETWORK=${NETWORK:-bivouac} BRIDGE=${BRIDGE:-bivouac0}
SUBNET=${SUBNET:-} NODES=${NODES:-} REFUSE=${REFUSE:-} DNS=${DNS:-}
PATH=$PATH:/usr/sbin:/sbin

fail() { echo "sandbox-network: $*" >&2; exit 1; }

# The chains: what docker forwards, what is for this machine, what this machine sends.
FORWARD=$BRIDGE-FORWARD INPUT=$BRIDGE-INPUT OUTPUT=$BRIDGE-OUTPUT

rules() {
  echo '*filter'
  echo ":$FORWARD - [0:0]"
  echo ":$INPUT - [0:0]"
  echo ":$OUTPUT - [0:0]"
  [ "$1" = 6 ] || {
    echo "-A $FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    echo "-A $FORWARD -i $BRIDGE -o $BRIDGE -j DROP"
    for a in $DNS; do
      echo "-A $FORWARD -i $BRIDGE -d $a -p udp --dport 53 -j RETURN"
      echo "-A $FORWARD -i $BRIDGE -d $a -p tcp --dport 53 -j RETURN"
      echo "-A $INPUT -d $a -p udp --dport 53 -j RETURN"
      echo "-A $INPUT -d $a -p tcp --dport 53 -j RETURN"
    done
    for a in 169.254.0.0/16 $REFUSE; do echo "-A $FORWARD -i $BRIDGE -d $a -j DROP"; done
    # Nomad publishes every port over TCP and UDP. Only the agent server's TCP is used.
    echo "-A $FORWARD -o $BRIDGE -p udp -j DROP"
    for a in $NODES; do echo "-A $FORWARD -o $BRIDGE -s $a -j RETURN"; done
    [ -z "$NODES" ] || echo "-A $FORWARD -o $BRIDGE -j DROP"
    echo "-A $FORWARD -j RETURN"
    echo "-A $INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    echo "-A $OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
    echo "-A $OUTPUT -p tcp -j RETURN"
  }
  # Sandboxes have no IPv6.
  [ "$1" = 4 ] || echo "-A $FORWARD -j DROP"
  echo "-A $INPUT -j DROP"
  echo "-A $OUTPUT -j DROP"
  echo COMMIT
}

# jumps are where the chains are entered: chain, direction, ours.
jumps() {
  entry=FORWARD
  [ "$1" = 6 ] || entry=DOCKER-USER
  echo "$entry -i $FORWARD"
  echo "$entry -o $FORWARD"
  echo "INPUT -i $INPUT"
  echo "OUTPUT -o $OUTPUT"
}

# tables prints which of iptables and ip6tables there are, as "4" and "6".
tables() {
  echo 4
  ! ip6tables -w -S >/dev/null 2>&1 || echo 6
}

tool() { if [ "$1" = 6 ]; then echo ip6tables; else echo iptables; fi; }

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
    jumps "$t" | while read -r entry way ours; do
      "$(tool "$t")" -w -C "$entry" "$way" "$BRIDGE" -j "$ours" 2>/dev/null || "$(tool "$t")" -w -I "$entry" "$way" "$BRIDGE" -j "$ours"
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
    jumps "$t" | while read -r entry way ours; do
      "$(tool "$t")" -w -C "$entry" "$way" "$BRIDGE" -j "$ours" 2>/dev/null || fail "$(tool "$t") has no jump from $entry to $ours: run up"
    done
  done
}

down() {
  ! docker network inspect "$NETWORK" >/dev/null 2>&1 || docker network rm "$NETWORK" >/dev/null
  for t in $(tables); do
    jumps "$t" | while read -r entry way ours; do
      while "$(tool "$t")" -w -D "$entry" "$way" "$BRIDGE" -j "$ours" 2>/dev/null; do :; done
    done
    for chain in "$FORWARD" "$INPUT" "$OUTPUT"; do
      "$(tool "$t")" -w -F "$chain" 2>/dev/null || continue
      "$(tool "$t")" -w -X "$chain"
    done
  done
}

case ${1:-} in
  up) up ;;
  check) check ;;
  down) down ;;
  *) fail "say up, check or down" ;;
esac
