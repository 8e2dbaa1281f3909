package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// manager is systemd's end of NOTIFY_SOCKET.
type manager struct {
	conn *net.UnixConn
	// env is the environment of the service.
	env string
}

func newManager(t *testing.T) manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return manager{conn, "NOTIFY_SOCKET=" + path}
}

// next returns the next message.
func (m manager) next(t *testing.T) string {
	t.Helper()
	_ = m.conn.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil {
		t.Fatalf("systemd was told nothing: %v", err)
	}
	return string(buf[:n])
}

// await waits for a message and passes over others.
func (m manager) await(t *testing.T, want string) {
	t.Helper()
	for got := ""; got != want; {
		got = m.next(t)
	}
}

// TestServer_TellsSystemd: a real socket gets what a service of Type=notify says, from a node alone,
// which has no leader.
func TestServer_TellsSystemd(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	n := s.nodes[0]
	n.env = []string{m.env, "WATCHDOG_USEC=3000000"}
	n.start()
	m.await(t, "READY=1")
	m.await(t, "WATCHDOG=1")
	n.process.signal(t, syscall.SIGHUP)
	m.await(t, "RELOADING=1")
	m.await(t, "READY=1")
	n.process.signal(t, syscall.SIGTERM)
	m.await(t, "STOPPING=1\nEXTEND_TIMEOUT_USEC=70000000")
	if code := n.process.wait(t); code != exitOK {
		t.Errorf("exit %d: %s", code, n.process.stderr.String())
	}
}

// TestSystemd_StarvesWithoutProgress: the watchdog is fed for progress only.
func TestSystemd_StarvesWithoutProgress(t *testing.T) {
	if !ownprocess.Enter(t) {
		return
	}
	m := newManager(t)
	name, value, _ := strings.Cut(m.env, "=")
	t.Setenv(name, value)
	s := &systemd{log: slog.New(slog.DiscardHandler), watchdog: 30 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	asked, ended := make(chan error, 3), make(chan error, 1)
	for range 3 {
		asked <- errors.New("raft's main loop does not answer")
	}
	go func() {
		ended <- s.feed(ctx, func(context.Context) error {
			select {
			case err := <-asked:
				if len(asked) == 0 {
					s.tell("X_STARVED=1")
				}
				return err
			default:
				return nil
			}
		})
	}()
	for _, want := range []string{"X_STARVED=1", "WATCHDOG=1"} {
		if got := m.next(t); got != want {
			t.Errorf("systemd was told %s, want %s", got, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
