package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy"
)

// HAProxyInstalled returns the program's path, "" if it is not installed.
func HAProxyInstalled() string {
	path, err := exec.LookPath("haproxy")
	if err != nil && isFile("/usr/sbin/haproxy") { // not on an ordinary user's PATH
		return "/usr/sbin/haproxy"
	}
	if err != nil {
		return ""
	}
	return path
}

// HAProxyOptions configures StartHAProxy.
type HAProxyOptions struct {
	// Dir receives the configuration and the log.
	Dir string
	// Port is the port for clients on 127.0.0.1; 0 is a free one.
	Port int
	// Also are further addresses to bind, with the same port.
	Also []string
	// Nodes are the nodes' HTTP addresses, host:port.
	Nodes []string
	// Certificate is a PEM file with the certificate and key of a second port, for HTTPS; "" for
	// none.
	Certificate string
	// Authority is a PEM file with the authority of the nodes' certificates, "" for nodes that serve
	// plain HTTP.
	Authority string
	// Detach lets it outlive this process.
	Detach bool
}

// HAProxy is a running load balancer with deploy/haproxy/haproxy.cfg.
type HAProxy struct {
	Server
	// TLSAddress is the counterpart of Address for HTTPS, "" without a certificate.
	TLSAddress string
}

// StartHAProxy starts HAProxy and returns when it accepts connections. The nodes need not be
// ready. The caller calls Close.
func StartHAProxy(ctx context.Context, o HAProxyOptions) (*HAProxy, error) {
	binary := HAProxyInstalled()
	if binary == "" {
		return nil, errors.New("starting haproxy: it is not installed")
	}
	s, ports, err := newServer(ctx, serverOptions{"haproxy", o.Dir, binary, o.Port, o.Detach, nil}, 2)
	if err != nil {
		return nil, err
	}
	raw, err := deploy.Files.ReadFile("haproxy/haproxy.cfg")
	if err != nil {
		return nil, fmt.Errorf("starting haproxy: %w", err)
	}
	h, secure := &HAProxy{Server: s}, 0
	if o.Certificate != "" {
		secure = ports[1]
		h.TLSAddress = "https://127.0.0.1:" + strconv.Itoa(secure)
	}
	text := haproxyConfig(string(raw), ports[0], secure, o)
	if err := h.configure("haproxy.cfg", text, "-db", "-f", ""); err != nil {
		return nil, err
	}
	if h.proc, err = h.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	err = until(ctx, h.proc, "accepting connections", func(ctx context.Context) error {
		err := call{method: http.MethodGet, url: h.Address + "/ready"}.do(ctx)
		if status := (*StatusError)(nil); errors.As(err, &status) {
			return nil // its own 503 while no node is ready
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// haproxyConfig puts ports, certificates and nodes into the installed file, in place of its
// examples.
func haproxyConfig(text string, port, secure int, o HAProxyOptions) []byte {
	var out strings.Builder
	node := 0
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimSpace(line); {
		case strings.HasPrefix(trimmed, "bind "):
			line = fmt.Sprintf("  bind 127.0.0.1:%d\n", port)
			for _, address := range o.Also {
				line += fmt.Sprintf("  bind %s:%d\n", address, port)
			}
		case strings.HasPrefix(trimmed, "#bind ") && secure != 0:
			line = fmt.Sprintf("  bind 127.0.0.1:%d ssl crt %s alpn h2,http/1.1\n", secure, o.Certificate)
		case strings.HasPrefix(trimmed, "#default-server ssl ") && o.Authority != "":
			line = fmt.Sprintf("  default-server ssl verify required ca-file %s\n", o.Authority)
		case strings.HasPrefix(trimmed, "user "), strings.HasPrefix(trimmed, "group "):
			continue // it runs as whoever starts it
		case strings.HasPrefix(trimmed, "stats socket "):
			// In its working folder: the path of a socket has at most 97 bytes.
			line = strings.Replace(line, "/run/haproxy/admin.sock", "unix@admin.sock", 1)
		case strings.HasPrefix(trimmed, "backend "):
			node = 0
		case strings.HasPrefix(trimmed, "server "):
			line = ""
			for ; node < len(o.Nodes); node++ {
				line += fmt.Sprintf("  server node-%d %s check\n", node+1, o.Nodes[node])
			}
		}
		out.WriteString(line)
	}
	return []byte(out.String())
}

// Close stops HAProxy. It may be called again.
func (h *HAProxy) Close() error { return h.stop(2 * time.Second) }
