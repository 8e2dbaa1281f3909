package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/scheduler/durable"
)

// devLayout names the files in the data directory of `bivouac dev`.
type devLayout struct{ dir string }

func (l devLayout) path(names ...string) string {
	return filepath.Join(append([]string{l.dir}, names...)...)
}
func (l devLayout) node(name string) string { return l.path(name) }
func (l devLayout) tls() string             { return l.path("tls") }
func (l devLayout) secrets() string         { return l.path("secrets") }
func (l devLayout) sandboxes() string       { return l.path("sandboxes") }
func (l devLayout) logs() string            { return l.path("logs") }

// info is the path of dev.json, which exists only while the nodes are ready.
func (l devLayout) info() string { return l.path("dev.json") }

// key is the file with the API key. It is written before the key is issued, so that a crash
// does not lose it.
func (l devLayout) key() string { return l.path("api-key") }

// ports is the file with the nodes' peer addresses. Raft stores them too, so they must stay the
// same over a restart.
func (l devLayout) ports() string { return l.path("peers.json") }

// devInfo is the format of dev.json.
type devInfo struct {
	APIKey string        `json:"api_key"`
	Nodes  []devInfoNode `json:"nodes"`
}

// devInfoNode is one node of dev.json.
type devInfoNode struct {
	Name string `json:"name"`
	HTTP string `json:"http"`
}

// nodeNames returns n1, n2, ...
func nodeNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "n" + strconv.Itoa(i+1)
	}
	return names
}

// httpPortStep is the distance between the HTTP ports of two neighbouring nodes.
const httpPortStep = 10

// listenHTTP binds the HTTP ports first, first+10, ...; first 0 takes any free ports.
func listenHTTP(first, nodes int) ([]net.Listener, error) {
	var bound []net.Listener
	for i := range nodes {
		port := 0
		if first != 0 {
			port = first + i*httpPortStep
		}
		ln, err := listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			closeAll(bound)
			if errors.Is(err, syscall.EADDRINUSE) {
				return nil, fmt.Errorf("port %d is in use; choose others with --http-port", port)
			}
			return nil, err
		}
		bound = append(bound, ln)
	}
	return bound, nil
}

// Peer ports are below the range from which the system assigns ports to outgoing connections,
// so that a port is likely to be free after a restart.
const (
	peerPortLow   = 20000
	peerPortHigh  = 32000
	peerPortTries = 200
)

// listenPeers binds the stored peer ports. A node without one, or whose port another program
// has taken, gets a free port, which is stored; the nodes tell each other their new addresses.
func (l devLayout) listenPeers(names []string) ([]net.Listener, error) {
	known := map[string]string{}
	b, err := os.ReadFile(l.ports())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("reading the peer ports: %w", err)
	default:
		if err := json.Unmarshal(b, &known); err != nil {
			return nil, fmt.Errorf("reading %s: %w", l.ports(), err)
		}
	}
	var bound []net.Listener
	for _, name := range names {
		ln, err := listenPeer(known[name])
		if err != nil {
			closeAll(bound)
			return nil, fmt.Errorf("the peer port of %s: %w", name, err)
		}
		known[name] = ln.Addr().String()
		bound = append(bound, ln)
	}
	b, err = json.MarshalIndent(known, "", "  ")
	if err == nil {
		err = durable.Replace(l.ports(), append(b, '\n'), 0o600)
	}
	if err != nil {
		closeAll(bound)
		return nil, err
	}
	return bound, nil
}

func listenPeer(address string) (net.Listener, error) {
	if address != "" {
		ln, err := listen(address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return ln, err
		}
	}
	var last error
	for range peerPortTries {
		port := peerPortLow + rand.IntN(peerPortHigh-peerPortLow)
		ln, err := listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return ln, nil
		}
		last = err
	}
	return nil, last
}

func closeAll(listeners []net.Listener) {
	for _, ln := range listeners {
		ln.Close()
	}
}

// checkNodes rejects a number of nodes that differs from the directory's: the cluster in it
// would wait for nodes that never come.
func (l devLayout) checkNodes(nodes int) error {
	b, err := os.ReadFile(l.ports())
	if err != nil {
		return nil
	}
	known := map[string]string{}
	if json.Unmarshal(b, &known) == nil && len(known) != nodes {
		return usagef("the cluster in %s has %d nodes; start it with --nodes %d, or choose another --data-dir", l.dir,
			len(known), len(known))
	}
	return nil
}

// loadKey returns the directory's API key. The first call makes and stores it.
func (l devLayout) loadKey() (apikey.Key, error) {
	b, err := os.ReadFile(l.key())
	if errors.Is(err, fs.ErrNotExist) {
		return l.newKey()
	}
	if err != nil {
		return apikey.Key{}, fmt.Errorf("reading the API key: %w", err)
	}
	return apikey.Parse(strings.TrimSpace(string(b)))
}

func (l devLayout) newKey() (apikey.Key, error) {
	key, err := newAPIKey()
	if err != nil {
		return apikey.Key{}, err
	}
	return key, durable.Replace(l.key(), []byte(key.Value+"\n"), 0o600)
}

// writeInfo publishes dev.json.
func (l devLayout) writeInfo(info devInfo) error {
	b, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fmt.Errorf("writing dev.json: %w", err)
	}
	return durable.Replace(l.info(), append(b, '\n'), 0o600)
}

// removeInfo removes dev.json, if there is one.
func (l devLayout) removeInfo() error {
	if err := os.Remove(l.info()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing dev.json: %w", err)
	}
	return nil
}

// makeCertificates makes the development cluster's CA once, and the certificates of nodes
// without one or with one that is due.
func (l devLayout) makeCertificates(names []string) error {
	d := tlsDir(l.tls())
	now := time.Now()
	if _, err := os.Stat(d.ca()); errors.Is(err, fs.ErrNotExist) {
		// A key without its certificate is left from a crash.
		if err := os.Remove(d.caKey()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("making the CA: %w", err)
		}
		if err := d.init(now, peernet.DefaultCALifetime); err != nil {
			return err
		}
	}
	for _, name := range names {
		files := d.node(name)
		if pair, err := peernet.ReadPair(files.CertFile, files.KeyFile); err == nil &&
			now.Before(peernet.RenewAt(pair.Leaf)) {
			continue
		}
		if _, err := d.issue(name, nil, now, peernet.DefaultNodeLifetime); err != nil {
			return err
		}
	}
	return nil
}

// maxLogBytes is the size from which the log of earlier runs is rotated to bivouac.log.1.
const maxLogBytes = 16 << 20

// openLogFile opens the log in dir for appending.
func openLogFile(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the data directory can't be used: %s", oneLine(err))
	}
	path := filepath.Join(dir, "bivouac.log")
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("putting the old log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the data directory can't be used: %s", oneLine(err))
	}
	return f, nil
}
