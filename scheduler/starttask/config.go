package starttask

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Config holds the limits and intervals of start tasks. Start from DefaultConfig.
type Config struct {
	// Deadline bounds a task from its creation to its end.
	Deadline time.Duration
	// TermGrace is the least time that a task gets in a new term, however old it is: a cluster
	// that was away for long finishes what it accepted.
	TermGrace time.Duration
	// Tasks is how many tasks run at a time, the oldest first; a user may have a quarter of them.
	// Calls is how many of them may create their conversation at a time, how many more prepare a
	// repository, and how many more write a key. Slow calls of the first two have four times as
	// many slots of their own. A user may have a quarter of the slots of either.
	Tasks, Calls int
	// RepositoryTimeout bounds the commands that prepare a repository, SetupTimeout its setup script.
	// A task that may run such a script has that much longer than Deadline.
	RepositoryTimeout, SetupTimeout time.Duration
	// ConfirmTimeout is how long a start waits for its user's answer before it goes on without the files
	// of a repository that run by themselves. A task that asks has that much longer, too.
	ConfirmTimeout time.Duration
	// APIURLs are the nodes as sandboxes reach them. With them sandboxes use the model gateway and get
	// no model key.
	APIURLs []string
	// BackoffMin and BackoffMax bound the pause after a failed attempt.
	BackoffMin, BackoffMax time.Duration
	// Logger may be nil.
	Logger *slog.Logger
}

// DefaultConfig returns the values of an ordinary installation.
func DefaultConfig() Config {
	return Config{
		Deadline:          10 * time.Minute,
		TermGrace:         time.Minute,
		Tasks:             1024,
		Calls:             64,
		RepositoryTimeout: 5 * time.Minute,
		SetupTimeout:      10 * time.Minute,
		ConfirmTimeout:    5 * time.Minute,
		BackoffMin:        100 * time.Millisecond,
		BackoffMax:        5 * time.Second,
	}
}

// Validate returns an error that names the first field that is out of bounds.
func (c Config) Validate() error {
	if c.Tasks < 1 || c.Calls < 1 {
		return fmt.Errorf("starttask: at least one task and one call must have room, got %d and %d", c.Tasks, c.Calls)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"deadline", c.Deadline},
		{"repository timeout", c.RepositoryTimeout},
		{"setup timeout", c.SetupTimeout},
		{"confirmation timeout", c.ConfirmTimeout},
		{"minimum back-off", c.BackoffMin},
		{"maximum back-off", c.BackoffMax},
	} {
		if d.value <= 0 {
			return fmt.Errorf("starttask: the %s must be positive, got %s", d.name, d.value)
		}
	}
	if c.BackoffMax < c.BackoffMin {
		return errors.New("starttask: the maximum back-off is below the minimum")
	}
	return nil
}
