package conversation

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

func TestPersistence_FailedAppendLeavesWholeLines(t *testing.T) {
	if !ownprocess.Enter(t) {
		return
	}
	path := filepath.Join(t.TempDir(), eventsFile)
	l, err := openEventLog(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.append([]event.Event{stored("idle")}); err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	// A full disk: the file can grow by ten bytes only.
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE,
		&syscall.Rlimit{Cur: uint64(l.size) + 10, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	err = l.append([]event.Event{stored("paused")})
	if e := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); e != nil {
		t.Fatal(e)
	}
	if err == nil {
		t.Fatal("an append beyond the limit worked")
	}
	if st, err := os.Stat(path); err != nil || st.Size() != l.size {
		t.Errorf("the file is %v long, want %d: %v", st.Size(), l.size, err)
	}
	if l.status() != "idle" || len(l.entries) != 1 {
		t.Errorf("the failed event is believed: %+v", l)
	}
	if err := l.append([]event.Event{stored("paused")}); err != nil || l.status() != "paused" {
		t.Errorf("afterwards: %v, %s", err, l.status())
	}
}

// stored is a status as a conversation stores it.
func stored(status string) event.Event {
	e := statusEvent(status)
	fill(e).Timestamp = now().Format(eventTime)
	return e
}
