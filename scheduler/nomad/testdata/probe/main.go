// Command probe runs inside a container and prints what it may do there, as JSON.
package main

import (
	"encoding/json"
	"net"
	"os"
	"strings"
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
	for _, address := range os.Args[1:] {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		r.Dials[address] = ""
		if err != nil {
			r.Dials[address] = err.Error()
			continue
		}
		_ = conn.Close()
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}
