package agent

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// TestDial_LostSYN is a port that drops the first attempt, as a container's does before its network
// stands.
func TestDial_LostSYN(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		silent   int // attempts that nobody answers
		err      error
		attempts int
		want     error
	}{
		"answered":        {attempts: 1},
		"lost once":       {silent: 1, attempts: 2},
		"refused":         {err: refused, attempts: 1, want: refused},
		"silent for good": {silent: 9, attempts: 2, want: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			attempts := 0
			connect := func(ctx context.Context, _, _ string) (net.Conn, error) {
				attempts++
				if attempts <= c.silent {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, c.err
			}
			_, err := dial(connect, time.Millisecond, 20*time.Millisecond)(t.Context(), "tcp", "127.0.0.1:1")
			if !errors.Is(err, c.want) || attempts != c.attempts {
				t.Errorf("%d attempts, %v; want %d, %v", attempts, err, c.attempts, c.want)
			}
		})
	}
}
