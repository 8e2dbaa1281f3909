package raftstore

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// failingTerm is a stable store that can't store a term.
type failingTerm struct {
	*raft.InmemStore
	fail func() error
}

// SetUint64 implements raft.StableStore. Raft stores the term 0 before it runs.
func (s failingTerm) SetUint64(_ []byte, term uint64) error {
	if term == 0 {
		return nil
	}
	return s.fail()
}

// runRaft runs a node of Raft until its store has failed, and shuts it down.
func runRaft(fail func() error) error {
	address, transport := raft.NewInmemTransport("a")
	config := raft.DefaultConfig()
	config.LocalID, config.LogOutput = "a", io.Discard
	config.HeartbeatTimeout, config.ElectionTimeout = 50*time.Millisecond, 50*time.Millisecond
	config.LeaderLeaseTimeout = 50 * time.Millisecond
	logs, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	members := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: address}}}
	if err := raft.BootstrapCluster(config, logs, raft.NewInmemStore(), snapshots, transport, members); err != nil {
		return err
	}
	failed := make(chan struct{})
	stable := failingTerm{raft.NewInmemStore(), func() error { defer close(failed); return fail() }}
	r, err := raft.NewRaft(config, &raft.MockFSM{}, logs, stable, snapshots, transport)
	if err != nil {
		return err
	}
	<-failed
	return r.Shutdown().Error()
}

// TestRaft_PanicsWhenTheStoreReturnsTheError is why endCaller ends the goroutine: what it replaces
// kills the process. It runs Raft in a process of its own.
func TestRaft_PanicsWhenTheStoreReturnsTheError(t *testing.T) {
	if os.Getenv("BIVOUAC_TEST_STORE") == "returns" {
		_ = runRaft(func() error { return errors.New("damaged") })
		select {} // Raft's panic ends the process
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "BIVOUAC_TEST_STORE=returns")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: failed to save current term: damaged") {
		t.Fatalf("Raft no longer panics, so endCaller may go: %v\n%s", err, out)
	}
}

// TestRaft_ShutsDownWhenTheStoreEndsItsGoroutine is what endCaller relies on.
func TestRaft_ShutsDownWhenTheStoreEndsItsGoroutine(t *testing.T) {
	if err := runRaft(func() error { endCaller(); return nil }); err != nil {
		t.Fatal(err)
	}
}
