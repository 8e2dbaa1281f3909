package cluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
)

// TestCallClient_MisdirectedCallsAreNotDone: a call names whom it is for.
func TestCallClient_MisdirectedCallsAreNotDone(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	ca, err := peernet.NewCA(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p, err := peernet.Open(peernet.Options{Address: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)},
		credentialsOf(t, ca, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	p.Identify(peerHost{n})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, n.handle) }()
	c := peernet.NewClient(credentialsOf(t, ca, "b"))
	c.Self = "b.1"
	if _, err := c.Call(t.Context(), peernet.AddressFor("a.9", p.Addr()), peernet.CallTerm,
		[]byte("{}")); !errors.Is(err, peernet.ErrNotSent) {
		t.Errorf("for a member that is not there: %v", err)
	}
	if _, err := c.Call(t.Context(), peernet.AddressFor(n.id, p.Addr()), callHello,
		[]byte("[")); errors.Is(err, peernet.ErrNotSent) || err == nil {
		t.Errorf("for the member: %v", err)
	}
	c.Self = "z.1"
	if _, err := c.Call(t.Context(), peernet.AddressFor(n.id, p.Addr()), peernet.CallTerm,
		[]byte("{}")); !errors.Is(err, peernet.ErrNotSent) {
		t.Errorf("by a member that the certificate is not of: %v", err)
	}
	c.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// credentialsOf issues a certificate for a node.
func credentialsOf(t *testing.T, ca peernet.PEM, node string) *peernet.Credentials {
	t.Helper()
	pair, err := peernet.Issue(ca, node, nil, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := peernet.TLSFiles{
		CAFile:   filepath.Join(dir, "ca.pem"),
		CertFile: filepath.Join(dir, "node.pem"),
		KeyFile:  filepath.Join(dir, "node-key.pem"),
	}
	for name, data := range map[string][]byte{
		files.CAFile:   ca.Certificate,
		files.CertFile: pair.Certificate,
		files.KeyFile:  pair.Key,
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := peernet.LoadCredentials(files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
