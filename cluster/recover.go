package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// A recovery makes one surviving disk the whole cluster, when a majority of the
// members is lost for good. It writes one snapshot: the state of the disk as the
// first of a new history, with this node under a new id as the only member. The
// snapshot's last rename is the moment at which it happens. Before it a note in
// the stable store says what is to come: who opens the directory next, a node or
// another recovery, finds the snapshot and finishes, or finds none and takes the
// note back.

// recoverRunbook is where the way back is described.
const recoverRunbook = "ops/runbooks/recover.md"

// The points of a recovery at which tests look at the disk.
const (
	recoverNoted   = "noted"   // the note is written
	recoverWritten = "written" // the snapshot is there, its last rename done
	recoverDone    = "done"
)

// recoverNote is the note in the stable store.
type recoverNote struct {
	// ID is the node's id afterwards, Index the new snapshot's.
	ID    string `json:"id"`
	Index uint64 `json:"index"`
}

// Recovery is the data directory of a node that does not run, opened and
// verified.
type Recovery struct {
	cfg     Config
	storage Storage
	disk    Survivor
	// at is called at each point; nil but in tests.
	at func(point string)
}

// OpenRecovery opens the node's data directory, which nobody else may have open,
// and verifies it as a start does.
func OpenRecovery(cfg Config) (*Recovery, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := mustHoldState(cfg.DataDir); err != nil {
		return nil, err
	}
	storage, err := openStorage(cfg.DataDir, cfg.LogStore, cfg.Logger.With("node", cfg.NodeName))
	if err != nil {
		return nil, err
	}
	r := &Recovery{cfg: cfg, storage: storage}
	if r.disk, err = describe(&storage, cfg.DataDir); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	return r, nil
}

// Disk says what the directory holds.
func (r *Recovery) Disk() Survivor { return r.disk }

// Close releases the directory.
func (r *Recovery) Close() error { return r.storage.Close() }

// Answering asks the former members, and the addresses in RetryJoin, for a second
// at most. It names each that answers as a member of a cluster: while one does,
// this disk must not become another one.
func (r *Recovery) Answering(ctx context.Context) ([]string, error) {
	creds, err := loadCredentials(r.cfg.TLS, r.cfg.Logger)
	if err != nil {
		return nil, err
	}
	client := newCallClient(creds)
	defer client.close()
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	asked := map[string]string{} // by address, the id that is expected there
	for _, a := range r.cfg.RetryJoin {
		asked[a] = ""
	}
	for _, m := range r.disk.Members {
		if m.ID != r.disk.ID {
			asked[m.Address] = m.ID
		}
	}
	var mu sync.Mutex
	var found []string
	var wg sync.WaitGroup
	for address, id := range asked {
		wg.Go(func() {
			if answer := r.hello(ctx, client, address); answer != nil && (answer.Member.ID == id || answer.Formed) {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, fmt.Sprintf("%s at %s (%s)", answer.Member.Name, address, answer.Member.ID))
			}
		})
	}
	wg.Wait()
	return found, nil
}

// hello asks one address who it is; nil when nobody says.
func (r *Recovery) hello(ctx context.Context, client *callClient, address string) *helloResponse {
	self := member{ID: r.disk.ID, Name: r.cfg.NodeName, Address: r.address()}
	body, err := json.Marshal(helloRequest{Member: self})
	if err != nil {
		return nil
	}
	raw, err := client.call(ctx, address, callHello, body)
	if err != nil {
		return nil
	}
	var answer helloResponse
	if json.Unmarshal(raw, &answer) != nil {
		return nil
	}
	return &answer
}

// address is the one at which this node will be reached.
func (r *Recovery) address() string { return peerAddressOf(r.cfg) }

// peerAddressOf is the address that a node with this configuration tells peers.
func peerAddressOf(cfg Config) string {
	listening := cfg.PeerAddress
	if cfg.Listener != nil {
		listening = cfg.Listener.Addr().String()
	}
	address, err := advertised(cfg, listening)
	if err != nil {
		return listening
	}
	return address
}

// Recovered says what a recovery has done.
type Recovered struct {
	fsm.Succeeded
	// Node and ID are those of the only member, at Address.
	Node    string `json:"node"`
	ID      string `json:"id"`
	Address string `json:"address"`
	// LeftOut counts the entries behind Until.
	LeftOut uint64 `json:"entries_left_out,omitempty"`
}

// Recover makes this disk the whole cluster, with its state up to the index
// until, 0 for all of it. What was not committed counts as committed from then
// on. On an error the directory holds what it held.
func (r *Recovery) Recover(until uint64, detail string) (Recovered, error) {
	if r.disk.Node != r.cfg.NodeName {
		return Recovered{}, fmt.Errorf("the data directory belongs to node %q, this is %q", r.disk.Node, r.cfg.NodeName)
	}
	if until > r.disk.LastIndex {
		return Recovered{}, fmt.Errorf("the disk ends with entry %d, before %d", r.disk.LastIndex, until)
	}
	state, err := replay(&r.storage, until)
	if err != nil {
		return Recovered{}, err
	}
	if state.problem != nil {
		return Recovered{}, fmt.Errorf("%w; it would stop the recovered node too: --until %d leaves it out, with all that follows", state.problem, state.poisoned-1)
	}
	out := Recovered{Node: r.cfg.NodeName, ID: newNodeID(r.cfg.NodeName), Address: r.address()}
	if until > 0 {
		out.LeftOut = r.disk.LastIndex - until
	}
	out.Succeeded, err = state.store.Succeed(fsm.Succession{
		ID: uuid.NewString(), At: time.Now(), Kind: fsm.FindingRecovered, Detail: detail, Index: r.disk.LastIndex + fsm.IndexStep,
	})
	if err != nil {
		return Recovered{}, fmt.Errorf("beginning a new history: %w", err)
	}
	first := firstState{
		store: state.store, index: out.Index, term: max(r.disk.LastTerm, r.disk.CurrentTerm),
		id: out.ID, address: out.Address, at: r.at,
	}
	return out, r.install(first)
}

// install writes the first state and opens the directory again, which finishes
// it and verifies the result.
func (r *Recovery) install(first firstState) error {
	if err := first.write(&r.storage); err != nil {
		return err
	}
	err := r.storage.Close()
	if err == nil {
		r.storage, err = openStorage(r.cfg.DataDir, r.cfg.LogStore, r.cfg.Logger)
	}
	if err == nil {
		r.disk, err = describe(&r.storage, r.cfg.DataDir)
	}
	if err == nil && (r.disk.ID != first.id || r.disk.LastIndex != first.index) {
		err = fmt.Errorf("the disk is %s at index %d, not %s at %d", r.disk.ID, r.disk.LastIndex, first.id, first.index)
	}
	if err != nil {
		return fmt.Errorf("the recovery is done, and reading it back failed: %w", err)
	}
	first.reached(recoverDone)
	return nil
}

// firstState is the first state of a new history, for one node.
type firstState struct {
	store       *fsm.Store
	index, term uint64
	id, address string
	at          func(point string)
}

func (f *firstState) reached(point string) {
	if f.at != nil {
		f.at(point)
	}
}

// write puts the state into the storage.
func (f *firstState) write(s *Storage) error {
	note, err := json.Marshal(recoverNote{ID: f.id, Index: f.index})
	if err != nil {
		return fmt.Errorf("encoding the note of the recovery: %w", err)
	}
	if err := s.Stable.Set(keyRecovery, note); err != nil {
		return fmt.Errorf("noting the recovery: %w", err)
	}
	f.reached(recoverNoted)
	members := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(f.id), Address: raft.ServerAddress(f.address)}}}
	if _, _, err := net.SplitHostPort(f.address); err != nil {
		return fmt.Errorf("the peer address %q is no host:port: %w", f.address, err)
	}
	// The library asks a transport how an address is written.
	_, plain := raft.NewInmemTransport(raft.ServerAddress(f.address))
	sink, err := s.Snapshots.Create(raft.SnapshotVersionMax, f.index, f.term, members, f.index, plain)
	if err != nil {
		return err
	}
	if err := f.store.Snapshot().Persist(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	f.reached(recoverWritten)
	return nil
}

// finishRecovery does what is left of a recovery that was noted, before anything
// in the directory is relied on.
func (s *Storage) finishRecovery(snapshots *checkedSnapshots) error {
	raw, err := getString(s.Stable, keyRecovery)
	if err != nil || raw == "" {
		return err
	}
	var note recoverNote
	if err := json.Unmarshal([]byte(raw), &note); err != nil {
		return s.disk.damaged(snapshots.dir, "%s: %v", keyRecovery, err)
	}
	list, err := snapshots.List()
	if err != nil {
		return fmt.Errorf("listing snapshots: %w", err)
	}
	for _, meta := range list {
		only := meta.Configuration.Servers
		if meta.Index != note.Index || len(only) != 1 || only[0].ID != raft.ServerID(note.ID) {
			continue
		}
		if err := s.mark.snapshot(note.Index); err != nil {
			return err
		}
		if err := s.Stable.Set(keyNodeID, []byte(note.ID)); err != nil {
			return fmt.Errorf("storing node id: %w", err)
		}
		if err := s.Stable.Set(keyPromise, nil); err != nil {
			return fmt.Errorf("storing promise: %w", err)
		}
	}
	if err := s.Stable.Set(keyRecovery, nil); err != nil {
		return fmt.Errorf("ending the recovery: %w", err)
	}
	return nil
}
