//go:build linux

package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// A node's machine routes everything that is not on the page's network into a device that drops it,
// and its name server is there too. Its firewall counts what leaves for anything that the page does
// not configure.
const watchScript = `set -e
ip tuntap add dev sink mode tun
ip link set sink up
ip addr add 198.51.100.1/24 dev sink
ip route add default dev sink
ip -6 addr add 2001:db8::1/64 dev sink nodad
ip -6 route add default dev sink
rm -f /etc/resolv.conf
printf 'nameserver 198.51.100.53\noptions timeout:1 attempts:1\n' > /etc/resolv.conf
iptables -A OUTPUT -o lo -j ACCEPT
iptables -A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
for n in 11 12 13; do iptables -A OUTPUT -d "$1$n" -p tcp --dport 8441 -j ACCEPT; done
iptables -A OUTPUT -d "${1}20" -p tcp -m multiport --dports 4646,8200,27000:27999 -j ACCEPT
iptables -A OUTPUT -j ACCEPT
ip6tables -A OUTPUT -o lo -j ACCEPT
ip6tables -A OUTPUT -p ipv6-icmp -j ACCEPT
ip6tables -A OUTPUT -j ACCEPT
`

// watchCalls begins to count.
func (h *host) watchCalls(t *testing.T) {
	t.Helper()
	if out, err := h.command(t.Context(), "sh", "-c", watchScript, "sh", h.site.inside).CombinedOutput(); err != nil {
		t.Fatalf("counting what %s calls: %v %s", h.name, err, out)
	}
}

// calls returns how many packets left for what is not configured, and the connections that show where
// to, if this kernel lists them.
func (h *host) calls(t *testing.T) (count int, where string) {
	t.Helper()
	for _, table := range []string{"iptables", "ip6tables"} {
		out, err := h.command(t.Context(), table, "-nvxL", "OUTPUT").CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		n, err := strconv.Atoi(strings.Fields(lines[len(lines)-1])[0])
		if err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		count += n
	}
	known, err := os.ReadFile(h.root("/proc/" + strconv.Itoa(h.holder.Process.Pid) + "/net/nf_conntrack"))
	if err != nil {
		return count, "(this kernel lists no connections)"
	}
	for line := range strings.Lines(string(known)) {
		if strings.Contains(line, "UNREPLIED") {
			where += line
		}
	}
	return count, where
}

// calledNothingElse fails for each node that called what the page does not configure, by address or by
// name, since its start: with a sandbox, a snapshot and a backup. Then it shows that a call and a
// lookup would have been counted.
func (w *site) calledNothingElse(t *testing.T) {
	t.Helper()
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		h := w.hosts[name]
		before, where := h.calls(t)
		t.Logf("%s: %d packets to what is not configured", name, before)
		if before != 0 {
			t.Errorf("%s calls what nobody configured: %d packets\n%s", name, before, where)
		}
		for _, probe := range []string{
			"timeout 2 getent ahosts home.example.org",
			"curl -s -m 1 http://203.0.113.9/",
			"curl -s -m 1 http://" + w.inside + "20:8500/",
		} {
			_ = h.command(t.Context(), "sh", "-c", probe).Run() // nobody answers
			after, _ := h.calls(t)
			if after <= before {
				t.Errorf("%s: %q is not counted: this test shows nothing", name, probe)
			}
			before = after
		}
	}
}
