package secrets

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bivouac.dev/bivouac/deploy/local"
)

// The tests run on a real Vault. Most share one in memory, each with its own prefix, namespace
// folder and AppRole. Those that seal or stop Vault start their own.
var shared struct {
	once  sync.Once
	dir   string
	vault *local.Vault
	err   error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.vault != nil {
		if err := shared.vault.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.RemoveAll(shared.dir)
	}
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("os/signal.loop")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func sharedVault(t *testing.T) *local.Vault {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "bivouac-secrets-"); shared.err != nil {
			return
		}
		shared.vault, shared.err = local.StartVault(context.Background(),
			local.VaultOptions{Dir: shared.dir, Progress: os.Stderr})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.vault
}

func ownVault(t *testing.T) *local.Vault {
	t.Helper()
	v, err := local.StartVault(t.Context(), local.VaultOptions{Dir: t.TempDir(), Durable: true, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// calls numbers the AppRoles, because -count runs a test more than once.
var calls atomic.Int64

// role returns the name of the AppRole, and of its policy, that config created.
func role(cfg VaultConfig) string { return path.Base(cfg.Prefix) }

// config creates an AppRole for the test.
func config(t *testing.T, v *local.Vault, o local.AppRoleOptions) VaultConfig {
	t.Helper()
	o.Name = fmt.Sprintf("%s-%d", strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())), calls.Add(1))
	o.Prefix, o.NomadNamespace = "pre/"+o.Name, "ns-"+o.Name
	role, err := v.NewAppRole(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secret-id")
	if err := os.WriteFile(file, []byte(role.SecretID+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return VaultConfig{
		Address: v.Address, RoleID: role.RoleID, SecretIDFile: file,
		Prefix: o.Prefix, NomadNamespace: o.NomadNamespace,
	}
}

// run creates a store from the configuration and runs it until the test ends.
func run(t *testing.T, cfg VaultConfig) *Vault {
	t.Helper()
	v, err := NewVault(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return v
}

// newStore returns a Vault store on the shared server.
func newStore(t *testing.T) *Vault {
	t.Helper()
	return run(t, config(t, sharedVault(t), local.AppRoleOptions{}))
}

// eventually waits for a condition for at most 20 seconds.
func eventually(t *testing.T, what string, cond func() error) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(25 * time.Millisecond)
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
