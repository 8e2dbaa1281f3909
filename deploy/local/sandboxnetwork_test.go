package local_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
)

// system runs a command that root has.
func system(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; "+command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

// TestSandboxNetwork_IsMadeMendedAndRemoved: check names what is missing, up mends it, down leaves
// nothing, and a network of somebody else's is refused. What the rules keep out is tested with
// sandboxes: TestRunner_Docker_NetworkIsShut in scheduler/nomad.
func TestSandboxNetwork_IsMadeMendedAndRemoved(t *testing.T) {
	t.Parallel()
	if err := local.SandboxNetworkPossible(t.Context()); err != nil {
		mandatory(t, "netns", err.Error())
	}
	id := strconv.Itoa(os.Getpid())
	network := local.SandboxNetwork{Name: "bivouac-check-" + id, Bridge: "bvc" + id}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := network.Down(); err != nil {
			t.Error(err)
		}
	})
	missing := func(what string) {
		t.Helper()
		if err := network.Check(t.Context()); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("check says %v, want %q", err, what)
		}
	}
	missing("there is no docker network")
	for _, foreign := range []struct{ options, problem string }{
		{"", "is not on the interface"},
		{"--opt com.docker.network.bridge.name=" + network.Bridge, "lets containers reach each other"},
	} {
		system(t, "docker network create "+foreign.options+" "+network.Name)
		if err := network.Up(t.Context()); err == nil || !strings.Contains(err.Error(), foreign.problem) {
			t.Errorf("a network made with %q: %v, want %q", foreign.options, err, foreign.problem)
		}
		system(t, "docker network rm "+network.Name)
	}
	for range 2 { // the second time there is nothing to do
		must(network.Up(t.Context()))
		must(network.Check(t.Context()))
	}
	for _, damage := range []struct{ command, problem string }{
		{"iptables -w -D INPUT -i B -j B-INPUT", "no jump from INPUT"},
		{"iptables -w -D DOCKER-USER -i B -j B-FORWARD", "no jump from DOCKER-USER"},
		{"iptables -w -t mangle -F B-INTO", "no rules in B-INTO"},
	} {
		system(t, strings.NewReplacer(" B", " "+network.Bridge).Replace(damage.command))
		missing(strings.ReplaceAll(damage.problem, "B-", network.Bridge+"-"))
		must(network.Up(t.Context()))
		must(network.Check(t.Context()))
	}
	for range 2 {
		must(network.Down())
	}
	if rules := system(t, "iptables-save; ip6tables-save"); strings.Contains(rules, network.Bridge) {
		t.Errorf("after down there is\n%s", rules)
	}
}
