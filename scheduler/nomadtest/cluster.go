package nomadtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// Cluster is a cluster of one node without Raft: it applies each proposal to its store at once.
// It implements scheduler.Cluster.
type Cluster struct {
	Store *fsm.Store

	mu    sync.Mutex
	index uint64
	ids   int
	// nonces counts the terms that NextTerm opened.
	nonces int
	// fail, if set, returns the error of a proposal, nil to apply it.
	fail func(fsm.Command) error
	// counts is how many commands of each type were applied.
	counts map[fsm.CommandType]int
}

var _ scheduler.Cluster = (*Cluster)(nil)

// NewCluster makes a cluster at the newest protocol version, with its first term open.
func NewCluster(clusterID string) *Cluster {
	c := NewOldCluster(clusterID)
	c.Must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion}, "")
	return c
}

// NewOldCluster makes a cluster at the first protocol version.
func NewOldCluster(clusterID string) *Cluster {
	c := &Cluster{Store: fsm.NewStore(), counts: map[fsm.CommandType]int{}}
	c.Must(&fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: clusterID}, "")
	return c
}

// Propose implements scheduler.Cluster.
func (c *Cluster) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if err := ctx.Err(); err != nil {
		return fsm.Result{}, err
	}
	if err := fsm.Validate(cmd.Body); err != nil {
		return fsm.Result{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		if err := c.fail(cmd); err != nil {
			return fsm.Result{}, err
		}
	}
	raw, err := cmd.Encode()
	if err != nil {
		return fsm.Result{}, err
	}
	if cmd, err = fsm.DecodeCommand(raw); err != nil {
		return fsm.Result{}, err
	}
	c.index++
	c.counts[cmd.Type]++
	return c.Store.Apply(c.index, cmd)
}

// Must proposes a test's request on behalf of a user ("" for none) and panics on an error.
func (c *Cluster) Must(body fsm.Body, user string) fsm.Result {
	c.mu.Lock()
	c.ids++
	id := fmt.Sprintf("test-%d", c.ids)
	c.mu.Unlock()
	res, err := c.Propose(context.Background(), fsm.NewCommand(id, time.Now(), user, body))
	if err != nil {
		panic(fmt.Sprintf("nomadtest: %s: %v", body.CommandType(), err))
	}
	return res
}

// Save returns the state as it is now, for RollBack.
func (c *Cluster) Save() []byte {
	var b bytes.Buffer
	if err := c.Store.Snapshot().Persist(&b); err != nil {
		panic(fmt.Sprintf("nomadtest: %v", err))
	}
	return b.Bytes()
}

// RollBack restores a saved state, as if all disks were rolled back, and opens its next term.
// It replaces Store, so no loop may run meanwhile.
func (c *Cluster) RollBack(saved []byte) {
	c.mu.Lock()
	c.Store = fsm.NewStore()
	if err := c.Store.Restore(bytes.NewReader(saved)); err != nil {
		panic(fmt.Sprintf("nomadtest: %v", err))
	}
	c.index = c.Store.View().Index()
	c.mu.Unlock()
	c.NextTerm()
}

// NextTerm opens the state's next term with a new nonce.
func (c *Cluster) NextTerm() {
	v := c.Store.View()
	c.mu.Lock()
	c.nonces++
	nonce := fmt.Sprintf("nonce-%d", c.nonces)
	c.mu.Unlock()
	c.Must(&fsm.TermOpenBody{Term: v.Term() + 1, Node: "n1", ClusterID: v.ClusterID(), Nonce: nonce}, "")
}

// Refuse makes proposals fail with the error that fn returns. nil ends that.
func (c *Cluster) Refuse(fn func(fsm.Command) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = fn
}

// Count returns how many commands of the type were applied.
func (c *Cluster) Count(t fsm.CommandType) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[t]
}

// Create makes a sandbox of the spec for the user "u1", with a key reference
// that Secrets can hold.
func (c *Cluster) Create(id, spec string, version int) *fsm.Sandbox {
	return c.Must(&fsm.SandboxCreateBody{
		ID: id, SpecID: spec, KeyRef: fsm.SecretRef{Path: fsm.SandboxKeyPath(id), Version: version},
		KeyHash: fmt.Sprintf("%x", sha256.Sum256([]byte(id))),
	}, "u1").Sandbox
}

// Sandbox returns the row, nil if there is none.
func (c *Cluster) Sandbox(id string) *fsm.Sandbox { return c.Store.View().SandboxAny(id) }

// State returns the state that users see, "" without a row.
func (c *Cluster) State(id string) fsm.SandboxState {
	sb := c.Sandbox(id)
	if sb == nil {
		return ""
	}
	return sb.State()
}
