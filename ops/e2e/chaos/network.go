//go:build linux

package chaos

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	// spacePrefix starts the names of our namespaces. The process id follows, so that leftovers
	// of a killed drill can be told from namespaces in use.
	spacePrefix = "bivouac-drill-"
	// deviceMTU is large to keep the number of packets small: each costs this process two
	// system calls.
	deviceMTU = 8960
	// gatewayHost is the last byte of this process's address; the nodes count from 1.
	gatewayHost = 254
)

// Need skips the test if namespaces can't be made, or fails it if BIVOUAC_TEST_REQUIRE names
// "netns".
func Need(t testing.TB, need func(t testing.TB, program string, there bool)) {
	t.Helper()
	_, err := exec.LookPath("ip")
	_, tun := os.Stat("/dev/net/tun")
	need(t, "netns", os.Geteuid() == 0 && err == nil && tun == nil)
}

// Network is a network of one namespace per node. This process is the router between them and a
// host of its own. It implements testcluster.Net.
type Network struct {
	subnet string // "198.18.7."
	lease  net.Listener
	name   string
	ports  []*port // the nodes', then this process's
	spaces []string
	traffic

	readers sync.WaitGroup
	closing atomic.Bool
	mu      sync.Mutex
	doors   []net.Listener
}

// port is one end of a tun device.
type port struct {
	file   *os.File
	device string
}

// NewNetwork makes a network for that many nodes and removes it when the test ends. The seed
// decides which packets are lost.
func NewNetwork(t testing.TB, nodes int, seed uint64) *Network {
	t.Helper()
	sweep()
	n := &Network{traffic: newTraffic(nodes+1, seed)}
	t.Cleanup(n.close)
	if err := n.open(nodes); err != nil {
		t.Fatalf("making a network: %v", err)
	}
	return n
}

func (n *Network) open(nodes int) error {
	id := make([]byte, 2)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	n.name = hex.EncodeToString(id)
	if err := n.claimSubnet(); err != nil {
		return err
	}
	for i := range nodes + 1 {
		p, err := openTun(fmt.Sprintf("bv%s%d", n.name, i))
		if err != nil {
			return err
		}
		n.ports = append(n.ports, p)
		if err := n.attach(i, i == nodes); err != nil {
			return err
		}
	}
	for i := range n.ports {
		n.readers.Go(func() { n.route(i) })
	}
	return nil
}

// claimSubnet claims a subnet of the block for benchmarks (RFC 2544) that is unused on this
// machine. The claim is released when the process ends.
func (n *Network) claimSubnet() (err error) {
	used, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for i := range 256 {
		n.subnet = fmt.Sprintf("198.18.%d.", (os.Getpid()+i)%256)
		taken := false
		for _, a := range used {
			taken = taken || strings.HasPrefix(a.String(), n.subnet)
		}
		if taken {
			continue
		}
		if n.lease, err = net.Listen("unix", "@bivouac-drill-"+n.subnet); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no subnet is free: %w", err)
}

// openTun makes a tun device, which the kernel removes when the file is closed.
func openTun(name string) (*port, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("making the device %s: %w", name, err)
	}
	return &port{file: os.NewFile(uintptr(fd), name), device: name}, nil
}

// attach gives a device its address, in its own namespace or, with here, in this process's.
func (n *Network) attach(i int, here bool) error {
	p := n.ports[i]
	if here {
		return errors.Join(
			ip("addr", "add", n.Gateway()+"/24", "dev", p.device),
			ip("link", "set", p.device, "mtu", strconv.Itoa(deviceMTU), "up"),
		)
	}
	space := fmt.Sprintf("%s%d-%s-%d", spacePrefix, os.Getpid(), n.name, i+1)
	if err := ip("netns", "add", space); err != nil {
		return err
	}
	n.spaces = append(n.spaces, space)
	return errors.Join(
		ip("link", "set", p.device, "netns", space),
		ip("-n", space, "link", "set", "lo", "up"),
		ip("-n", space, "addr", "add", n.Host(i)+"/24", "dev", p.device),
		ip("-n", space, "link", "set", p.device, "mtu", strconv.Itoa(deviceMTU), "up"),
	)
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// sweep removes the namespaces of processes that have ended.
func sweep() {
	spaces, err := os.ReadDir("/var/run/netns")
	if err != nil {
		return // there are none
	}
	for _, s := range spaces {
		rest, ours := strings.CutPrefix(s.Name(), spacePrefix)
		number, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(number)
		if ours && err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = ip("netns", "del", s.Name())
		}
	}
}

func (n *Network) close() {
	n.closing.Store(true)
	n.mu.Lock()
	for _, d := range n.doors {
		_ = d.Close()
	}
	n.mu.Unlock()
	for _, p := range n.ports {
		_ = p.file.Close()
	}
	n.readers.Wait()
	for _, s := range n.spaces {
		_ = ip("netns", "del", s)
	}
	if n.lease != nil {
		_ = n.lease.Close()
	}
}

// Host returns the address of a node; nodes count from 0.
func (n *Network) Host(node int) string { return n.subnet + strconv.Itoa(node+1) }

// Gateway returns this process's address.
func (n *Network) Gateway() string { return n.subnet + strconv.Itoa(gatewayHost) }

// Device returns the interface with the gateway's address.
func (n *Network) Device() string { return n.ports[len(n.ports)-1].device }

// Command makes a command line that runs another in a node's namespace. `ip netns exec` replaces itself with
// the program, so the process id is the program's.
func (n *Network) Command(node int, command ...string) []string {
	return append([]string{"ip", "netns", "exec", n.spaces[node]}, command...)
}

// Outside lets the nodes reach a server on the loopback interface and returns the address they
// use.
func (n *Network) Outside(address string) (string, error) {
	door, err := net.Listen("tcp", n.Gateway()+":0")
	if err != nil {
		return "", err
	}
	n.mu.Lock()
	n.doors = append(n.doors, door)
	n.mu.Unlock()
	go func() {
		for {
			in, err := door.Accept()
			if err != nil {
				return
			}
			go pass(in, address)
		}
	}()
	return door.Addr().String(), nil
}

// pass proxies one connection to the address.
func pass(in net.Conn, address string) {
	defer in.Close()
	out, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer out.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(out, in)
		_ = out.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(in, out)
	_ = in.(*net.TCPConn).CloseWrite()
	<-ended
}
