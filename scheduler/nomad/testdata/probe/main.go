// Command probe runs inside a container and prints what it may do there, as JSON. Its arguments are
// addresses to dial: "host:port", or "udp:host:port" for one that echoes. With "listen" before the
// addresses it serves them until it is killed.
package main

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

type report struct {
	// Status has members of /proc/self/status.
	Status map[string]string `json:"status"`
	// Errors has the error of each attempt, "" where it succeeded.
	Errors map[string]string `json:"errors"`
	// Dials has the error of each address of the arguments.
	Dials map[string]string `json:"dials"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "listen" {
		listen(os.Args[2:])
	}
	r := report{Status: map[string]string{}, Errors: map[string]string{}, Dials: map[string]string{}}
	raw, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp", "Uid":
			r.Status[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	note := func(what string, err error) {
		r.Errors[what] = ""
		if err != nil {
			r.Errors[what] = err.Error()
		}
	}
	note("write root", os.WriteFile("/probe.txt", nil, 0o600))
	note("write tmp", os.WriteFile("/tmp/probe.txt", nil, 0o600))
	note("write workspace", os.WriteFile("/workspace/probe.txt", nil, 0o600))
	note("chown", os.Chown("/workspace/probe.txt", 12345, 12345))
	note("mknod", syscall.Mknod("/workspace/probe.dev", syscall.S_IFCHR|0o600, 1<<8|3))
	note("mount", syscall.Mount("none", "/workspace", "tmpfs", 0, ""))
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP)
	note("raw socket", err)
	if err == nil {
		_ = syscall.Close(fd)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, address := range os.Args[1:] {
		wg.Go(func() {
			text := ""
			if err := dial(address); err != nil {
				text = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			r.Dials[address] = text
		})
	}
	wg.Wait()
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

// target returns the network and the address of an argument.
func target(arg string) (network, address string) {
	if rest, ok := strings.CutPrefix(arg, "udp:"); ok {
		return "udp", rest
	}
	return "tcp", arg
}

func dial(arg string) error {
	network, address := target(arg)
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if network == "tcp" {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := conn.Write([]byte("echo")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 16))
	return err
}

// listen serves until the process is killed. It says "ready" when all addresses are bound.
func listen(args []string) {
	for _, arg := range args {
		network, address := target(arg)
		if network == "tcp" {
			l, err := net.Listen(network, address)
			must(err)
			go accept(l)
			continue
		}
		conn, err := net.ListenPacket(network, address)
		must(err)
		go echo(conn)
	}
	_, _ = os.Stdout.WriteString("ready\n")
	select {}
}

func accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		must(err)
		_ = conn.Close()
	}
}

func echo(conn net.PacketConn) {
	buf := make([]byte, 16)
	for {
		n, from, err := conn.ReadFrom(buf)
		must(err)
		_, _ = conn.WriteTo(buf[:n], from)
	}
}

func must(err error) {
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}
