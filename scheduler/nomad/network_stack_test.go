package nomad_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// The addresses of these tests. The subnet is one for benchmarks.
const (
	metadata   = "169.254.169.254"
	outerHost  = "198.19.77.1"
	outerOther = "198.19.77.2"
)

// outside is another machine: a network namespace that this one routes to. It has an ordinary
// address and, for the interfaces of containers alone, that of a cloud's metadata service.
type outside struct {
	b      *bench
	space  string
	device string
	probe  string
}

// ip runs a command of iproute2.
func (b *bench) ip(args ...string) {
	b.Helper()
	if out, err := exec.CommandContext(context.WithoutCancel(b.Context()), "ip", args...).CombinedOutput(); err != nil {
		b.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// needFirewall skips, or fails, where namespaces or the rules of docker's networks can't be made.
func (b *bench) needFirewall() {
	b.Helper()
	b.needDocker()
	err := local.SandboxNetworkPossible(b.Context())
	if err == nil {
		_, err = exec.LookPath("ip")
	}
	switch {
	case err == nil:
	case required("netns"):
		b.Fatal(err)
	default:
		b.Skip(err)
	}
}

// newOutside makes it. Packets of the bridges for the metadata address go there; the machine's own
// do not.
func newOutside(b *bench, bridges ...string) *outside {
	b.Helper()
	id := strconv.Itoa(os.Getpid())
	o := &outside{b: b, space: "bivouac-outside-" + id, device: "bvo" + id, probe: filepath.Join(b.TempDir(), "probe")}
	b.must(local.BuildGo(b.Context(), "./scheduler/nomad/testdata/probe", o.probe))
	b.ip("netns", "add", o.space)
	b.Cleanup(func() { b.ip("netns", "del", o.space) })
	b.ip("link", "add", o.device, "type", "veth", "peer", "name", "eth0", "netns", o.space)
	b.ip("address", "add", outerHost+"/30", "dev", o.device)
	b.ip("link", "set", o.device, "up")
	for _, args := range []string{
		"address add " + outerOther + "/30 dev eth0", "address add " + metadata + "/32 dev eth0", "link set lo up",
		"link set eth0 up",
		"route add default via " + outerHost,
	} {
		b.ip(append([]string{"-n", o.space}, strings.Fields(args)...)...)
	}
	b.ip("route", "add", metadata, "dev", o.device, "table", id)
	for _, bridge := range bridges {
		rule := []string{"iif", bridge, "to", metadata, "lookup", id}
		b.ip(append([]string{"rule", "add"}, rule...)...)
		b.Cleanup(func() { b.ip(append([]string{"rule", "del"}, rule...)...) })
	}
	return o
}

// listen serves addresses there until the test ends.
func (o *outside) listen(addresses ...string) {
	o.b.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", o.space, o.probe, "listen"}, addresses...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	o.b.must(err)
	o.b.must(cmd.Start())
	o.b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		o.b.Fatalf("listening at %v: %q, %v", addresses, line, err)
	}
}

// dials returns what the probe's dials say, run there or here.
func (o *outside) dials(here bool, addresses ...string) map[string]string {
	o.b.Helper()
	args := []string{"ip", "netns", "exec", o.space, o.probe}
	if here {
		args = args[4:]
	}
	out, err := exec.CommandContext(o.b.Context(), args[0], append(args[1:], addresses...)...).Output()
	var p probe
	if err == nil {
		err = json.Unmarshal(out, &p)
	}
	o.b.must(err)
	return p.Dials
}

// openPorts listens on all addresses of this machine, as Nomad, Vault or a node may, and returns
// the ports.
func (b *bench) openPorts(n int) (ports []string) {
	b.Helper()
	for range n {
		l, err := net.Listen("tcp", ":0")
		b.must(err)
		b.Cleanup(func() { _ = l.Close() })
		_, port, err := net.SplitHostPort(l.Addr().String())
		b.must(err)
		ports = append(ports, port)
	}
	return ports
}

// address returns the container's own address.
func address(c container) string {
	for _, n := range c.NetworkSettings.Networks {
		return n.IPAddress
	}
	return ""
}

// neighbour is a sandbox with a UDP server beside its agent server.
type neighbour struct {
	c container
	// own and published are the agent server at the container's address and on the machine.
	own, published string
}

func (b *bench) neighbour(image string) neighbour {
	b.Helper()
	job := b.bridgedJob()
	job.Template.Image = image
	_, o := b.started(job)
	c := b.inspect(o)
	b.docker("exec", "--detach", c.ID, "/probe", "listen", "udp::8000")
	return neighbour{
		c: c, own: net.JoinHostPort(address(c), "8000"),
		published: net.JoinHostPort(o.Placement.Address, strconv.Itoa(o.Placement.Ports[fsm.PortAgentServer])),
	}
}

// reach is what was tried: address to whether it has to succeed.
type reach map[string]bool

func (r reach) check(b *bench, from string, got map[string]string) {
	b.Helper()
	for address, want := range r {
		text, tried := got[address]
		if !tried || (text == "") != want {
			b.Errorf("from %s to %s: reached %t, want %t (%s)", from, address, text == "", want, text)
		}
	}
	b.Logf("from %s: %v", from, got)
}

func (r reach) addresses() (list []string) {
	for a := range r {
		list = append(list, a)
	}
	return list
}

// all returns the same verdict for every address.
func all(want bool, addresses ...string) reach {
	r := reach{}
	for _, a := range addresses {
		r[a] = want
	}
	return r
}

// with returns both.
func (r reach) with(others reach) reach {
	for a, want := range others {
		r[a] = want
	}
	return r
}

// TestRunner_Docker_NetworkIsShut: on docker's own bridge a sandbox reaches its neighbours, the
// machine and a cloud's metadata; in the network of deploy/nomad/sandbox-network.sh it reaches none
// of them, while the way out and the nodes' way in stay open.
func TestRunner_Docker_NetworkIsShut(t *testing.T) {
	t.Parallel()
	plain := benchWith(t, func(c *nomad.Config) { c.HostNetwork = hostNetwork })
	plain.needFirewall()
	id := strconv.Itoa(os.Getpid())
	network := local.SandboxNetwork{Name: "bivouac-test-" + id, Bridge: "bvn" + id}
	plain.must(network.Up(t.Context()))
	t.Cleanup(func() {
		// A purge returns before Nomad's client has ended the container.
		if err := await(context.Background(), network.Down); err != nil {
			t.Error(err)
		}
	})
	shut := benchWith(t, func(c *nomad.Config) { c.HostNetwork, c.DockerNetwork = hostNetwork, network.Name })
	image := plain.probeImage()
	o := newOutside(plain, "docker0", network.Bridge)
	o.listen(outerOther+":80", "udp:"+outerOther+":53", metadata+":80")

	ports := plain.openPorts(3)
	open1, open2 := plain.neighbour(image), plain.neighbour(image)
	one, two := shut.neighbour(image), shut.neighbour(image)
	gateway := func(n neighbour) string {
		for _, net := range n.c.NetworkSettings.Networks {
			return net.Gateway
		}
		return ""
	}
	var machine []string
	for _, port := range ports {
		for _, host := range []string{gateway(open1), gateway(one), outerHost} {
			machine = append(machine, net.JoinHostPort(host, port))
		}
	}
	outgoing := all(true, outerOther+":80", "udp:"+outerOther+":53")
	others := append([]string{metadata + ":80"}, machine...)

	// What docker's bridge lets through: else the rest of the test shows nothing.
	want := all(true, append(others, open2.own, "udp:"+open2.own, open2.published)...).with(outgoing)
	want.check(plain, "docker's bridge", plain.probe(open1.c, want.addresses()...).Dials)
	all(true, "udp:"+open2.published).check(plain, "another machine", o.dials(false, "udp:"+open2.published))

	want = all(false, append(others, two.own, "udp:"+two.own, two.published, "udp:"+two.published, one.published,
		open1.own, open1.published, net.JoinHostPort("127.0.0.1", ports[0]))...).with(outgoing)
	want.check(shut, "a shut sandbox", shut.probe(one.c, want.addresses()...).Dials)
	all(false, one.own).check(plain, "docker's bridge into it", plain.probe(open1.c, one.own).Dials)
	for _, from := range []struct {
		name string
		here bool
	}{{"this machine", true}, {"another machine", false}} {
		want := all(true, two.published).with(all(false, "udp:"+two.published, "udp:"+two.own))
		want.check(shut, from.name, o.dials(from.here, want.addresses()...))
	}

	// The operator names who comes in and what is closed. The rules are replaced in place.
	network.Nodes, network.Refuse = []string{"198.19.77.9"}, []string{outerOther + "/32"}
	shut.must(network.Up(t.Context()))
	all(false, two.published).check(shut, "a machine that is no node", o.dials(false, two.published))
	want = all(false, outgoing.addresses()...)
	want.check(shut, "a shut sandbox to what is refused", shut.probe(one.c, want.addresses()...).Dials)
	network.Nodes = append(network.Nodes, outerOther)
	shut.must(network.Up(t.Context()))
	all(true, two.published).check(shut, "a node", o.dials(false, two.published))
	shut.must(network.Check(t.Context()))

	// What sandboxes need of the nodes is open all the same: a port of an address.
	api := []string{net.JoinHostPort(gateway(one), ports[0]), outerOther + ":80"}
	network.API = api
	shut.must(network.Up(t.Context()))
	want = all(true, api...).with(all(false, net.JoinHostPort(gateway(one), ports[1]), "udp:"+outerOther+":53", two.own))
	want.check(shut, "a shut sandbox to the nodes", shut.probe(one.c, want.addresses()...).Dials)
}

// TestRunner_Docker_MissingNetworkIsSaid: a client without the network starts nothing, and the
// reason names it.
func TestRunner_Docker_MissingNetworkIsSaid(t *testing.T) {
	t.Parallel()
	b := benchWith(t, func(c *nomad.Config) { c.DockerNetwork = "bivouac-missing" })
	b.watch()
	job := b.bridgedJob()
	b.must(b.r.Start(t.Context(), job))
	o := b.look(job, "a reason", func(o scheduler.Observed) bool {
		return o.Failure != nil && strings.Contains(o.Failure.Detail, "bivouac-missing") ||
			o.Waiting != nil && strings.Contains(o.Waiting.Detail, "bivouac-missing")
	})
	t.Logf("failure %+v, waiting %+v", o.Failure, o.Waiting)
}
