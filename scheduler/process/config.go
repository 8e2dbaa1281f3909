package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Secrets reads sandboxes' keys. scheduler.Secrets implements it.
type Secrets interface {
	// Read returns the data of one version.
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
}

// Config configures a Runner. Dir, AgentBinary and Secrets are required; a zero value elsewhere
// means the default.
type Config struct {
	// Dir is the runner's directory, with one folder per sandbox. New creates it. One Runner at
	// a time uses it.
	Dir string
	// AgentBinary is the program that runs for a template's command "sandbox-agent" or empty
	// command. AgentArgs precede the template's arguments.
	AgentBinary string
	AgentArgs   []string
	Secrets     Secrets
	// Environ is this program's environment, of which sandboxes get PATH, the language, the time
	// zone and the like; nil is os.Environ().
	Environ []string
	// Env is added to every sandbox's environment and overrides its spec's. It must not contain
	// secrets.
	Env map[string]string

	// StopGrace is how long a sandbox has between SIGTERM and SIGKILL.
	// Default 10 s.
	StopGrace time.Duration
	// Restarts is how often a task that ends by itself is restarted before it counts as
	// crashed. A task that ran for StableAfter starts counting again. Default 3 and 1 min; a
	// negative value means never.
	Restarts    int
	StableAfter time.Duration
	// BackoffMin and BackoffMax bound the delay before a restart, which doubles. Default 250 ms
	// and 5 s.
	BackoffMin, BackoffMax time.Duration
	// MaxLog bounds the stored output of one sandbox, in bytes. Default 4 MiB.
	MaxLog int64
	// Logger may be nil.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Dir == "":
		return c, errors.New("process runner: no directory is configured")
	case c.AgentBinary == "":
		return c, errors.New("process runner: no agent binary is configured")
	case c.Secrets == nil:
		return c, errors.New("process runner: no secret store is configured")
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
		name  string
	}{
		{&c.StopGrace, 10 * time.Second, "stop grace"},
		{&c.StableAfter, time.Minute, "stable time"},
		{&c.BackoffMin, 250 * time.Millisecond, "minimum back-off"},
		{&c.BackoffMax, 5 * time.Second, "maximum back-off"},
	} {
		*d.value = cmp.Or(*d.value, d.def)
		if *d.value < 0 {
			return c, fmt.Errorf("process runner: %s must be positive, got %s", d.name, *d.value)
		}
	}
	c.Restarts = cmp.Or(c.Restarts, 3)
	if c.MaxLog <= 0 {
		c.MaxLog = 4 << 20
	}
	if c.Environ == nil {
		c.Environ = os.Environ()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
