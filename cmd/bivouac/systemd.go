package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// systemd tells the service manager about a node, by the protocol of sd_notify. A nil systemd, and
// one without NOTIFY_SOCKET in the environment, tell nobody.
type systemd struct {
	log *slog.Logger
	// watchdog is the time after which systemd ends a node that does not feed it; 0 for none.
	watchdog time.Duration
	// stopping is how long a stop may take, a time.Duration.
	stopping atomic.Int64
}

// newSystemd reads the environment that systemd gave this process.
func newSystemd(log *slog.Logger, stopping time.Duration) (*systemd, error) {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("reading systemd's watchdog from the environment: %w", err)
	}
	s := &systemd{log: log, watchdog: watchdog}
	s.stopping.Store(int64(stopping))
	return s, nil
}

func (s *systemd) tell(state string) {
	if s == nil {
		return
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("systemd could not be told about this node", "state", state, "error", err)
	}
}

// ready says that the API's port is served. /ready says whether the cluster is.
func (s *systemd) ready() { s.tell(daemon.SdNotifyReady) }

// reloading is followed by ready.
func (s *systemd) reloading() { s.tell(daemon.SdNotifyReloading) }

// stop also makes systemd wait for as long as this node's configuration may take to drain.
func (s *systemd) stop() {
	if s != nil {
		s.tell(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping,
			time.Duration(s.stopping.Load()).Microseconds()))
	}
}

// feed feeds the watchdog while progress returns nil in time, until ctx ends.
func (s *systemd) feed(ctx context.Context, progress func(context.Context) error) error {
	every := s.watchdog / 3
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		asking, cancel := context.WithTimeout(ctx, every)
		err := progress(asking)
		cancel()
		if err != nil {
			s.log.Error("systemd's watchdog is not fed", "error", err)
			continue
		}
		s.tell(daemon.SdNotifyWatchdog)
	}
}
