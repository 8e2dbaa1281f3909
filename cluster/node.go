package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/fsm"
)

const (
	// transferTimeout bounds handing leadership over before stopping.
	transferTimeout = 2 * time.Second
	// drainTimeout bounds waiting for Raft to answer what is on its way before
	// it is shut down; it answers at once unless the disk hangs.
	drainTimeout = 5 * time.Second
)

// ErrAbrupt, as the cause of the end of Run's context, makes the node stop
// without handing leadership over: the nearest thing to a crash that one
// process can do to a part of itself. For tests.
var ErrAbrupt = errors.New("stop abruptly")

// Node is one member of the cluster. All methods may be called at any time,
// from any goroutine; before Run and after it they answer that there is no
// leader, or that the node stops.
type Node struct {
	cfg     Config
	id      raft.ServerID
	logger  *slog.Logger
	store   *fsm.Store
	machine *machine
	storage Storage
	network Network
	metrics *metrics

	// raft is nil until Run has started it.
	raft  atomic.Pointer[raft.Raft]
	feed  atomic.Pointer[feed]
	inbox *raftfix.Inbox // Run's
	// another is told of members that answer for others.
	another func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID)
	// transfers are this node's handovers.
	transfers raftfix.Transfers
	started   atomic.Bool
	// notify gets every beginning and end of this node's leadership, in order.
	notify chan bool
	// pauses stop the work of a leader; leading is held by that work.
	pauses  chan leadPause
	leading sync.RWMutex
	// broken gets the error of a Raft that must be started anew.
	broken chan error

	// calls are the public calls in progress; futures are goroutines that wait
	// for Raft, guarding ones that wait for late objections to the start. stopping
	// ends when Run begins to stop.
	calls    gate
	futures  sync.WaitGroup
	guarding sync.WaitGroup
	stopping context.Context
	stop     context.CancelFunc

	leaders   leaderWatch
	terms     termWatch
	indexes   rounds // the leader's: commit index, verified
	reads     rounds // this node's: the index to wait for
	quickest  quickest
	entries   batcher // the leader's: commands for the log
	outbox    batcher // commands for the leader
	formation formation
	addresses addressBook
	identity  identity
	lookout   lookout
	fitness   fitness
	witness   witness
	silences  silences
	caughtUp  atomic.Bool
}

// New opens the data directory and listens on the peer address; it starts
// nothing. store must be empty and is the node's from now on: nobody else may
// write it.
func New(cfg Config, store *fsm.Store) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cluster configuration: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	creds, err := loadCredentials(cfg.TLS, cfg.Logger)
	if err != nil {
		return nil, err
	}
	if creds.node != cfg.NodeName {
		return nil, fmt.Errorf("NodeName is %q but %s was issued to node %q; %s", cfg.NodeName, cfg.TLS.CertFile, creds.node, remedy)
	}
	storage, err := openStorage(cfg.DataDir, cfg.LogStore, cfg.Logger.With("node", cfg.NodeName))
	if err != nil {
		return nil, err
	}
	if err := storage.checkCopy(cfg.DataDir); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	if err := storage.notePlace(cfg.DataDir); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	port, err := openPeerPort(cfg, creds)
	if err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	n, err := NewWith(cfg, store, storage, port)
	if err != nil {
		return nil, errors.Join(err, port.Close(), storage.Close())
	}
	n.metrics.expiry = creds.expiry
	return n, nil
}

// NewWith is New with the storage and the network handed in; clustertest's are
// in memory. cfg is used as it is, apart from its files and addresses. The node
// closes both at the end of Run.
func NewWith(cfg Config, store *fsm.Store, storage Storage, network Network) (*Node, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	id, err := nodeID(storage.Stable, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, id: id, logger: cfg.Logger.With("node", cfg.NodeName),
		store: store, machine: newMachine(store), storage: storage, network: network,
		notify: make(chan bool, 1), pauses: make(chan leadPause), broken: make(chan error, 1),
	}
	n.stopping, n.stop = context.WithCancel(context.Background())
	n.metrics = newMetrics(n)
	n.another = n.answeredByAnother()
	n.leaders.init()
	n.identity.init(uuid.NewString())
	n.fitness.init()
	n.addresses.init(n.self(), n.servers)
	n.indexes = rounds{run: n.verifiedIndex, spawn: n.futures.Go}
	n.reads = rounds{run: n.readIndex, spawn: n.futures.Go, started: n.metrics.readRounds.Inc}
	n.entries = batcher{carry: n.appendEntry, spawn: n.futures.Go, lanes: 1}
	n.outbox = batcher{carry: n.forwardBatch, spawn: n.futures.Go, lanes: forwardLanes}
	if err := errors.Join(n.formation.init(storage.Stable), n.witness.init(storage.Stable)); err != nil {
		return nil, err
	}
	if port, ok := network.(*peerPort); ok {
		port.identify(n)
	}
	return n, nil
}

// nodeID reads the node's id, or draws it on the first start: "<name>.<random>",
// so that Raft's configuration tells the name of every member, and a node that
// lost its disk is not taken for the one that had it.
func nodeID(stable raft.StableStore, name string) (raft.ServerID, error) {
	id, err := getString(stable, keyNodeID)
	if err != nil {
		return "", fmt.Errorf("reading node id: %w", err)
	}
	if id == "" {
		id = newNodeID(name)
		if err := stable.Set(keyNodeID, []byte(id)); err != nil {
			return "", fmt.Errorf("storing node id: %w", err)
		}
	}
	if owner := nodeName(raft.ServerID(id)); owner != name {
		return "", fmt.Errorf("the data directory belongs to node %q, this is %q", owner, name)
	}
	return raft.ServerID(id), nil
}

func newNodeID(name string) string { return name + "." + uuid.NewString()[:13] }

// Run takes part in the cluster until ctx ends, then hands leadership over if
// it leads, and stops; it returns when every goroutine has ended and the data
// directory is closed. It returns an error when the node must not go on: a log
// entry or snapshot it does not understand, most of all. Run once only.
func (n *Node) Run(ctx context.Context) error {
	if !n.started.CompareAndSwap(false, true) {
		return errors.New("cluster: Run was called twice")
	}
	unregister, err := n.metrics.register(n.cfg.Registerer)
	if err != nil {
		return errors.Join(fmt.Errorf("registering metrics: %w", err), n.close())
	}
	defer unregister()
	defer n.guarding.Wait()
	var tasks sync.WaitGroup
	served := make(chan error, 1)
	// From now on, so that nodes that start together can ask each other.
	tasks.Go(func() { served <- n.network.Serve(n.stopping, n.handle) })
	var r *raft.Raft
	if err = n.guard(ctx); err == nil {
		r, err = n.startRaft()
	}
	if err != nil {
		n.stop()
		n.calls.close()
		tasks.Wait()
		n.release()
		return errors.Join(err, n.close())
	}
	observer := n.observeLeader(r, &tasks)
	n.raft.Store(r)
	tasks.Go(func() { n.watchTerms(n.stopping) })
	tasks.Go(func() { n.form(n.stopping) })
	tasks.Go(func() { n.catchUp(n.stopping) })
	tasks.Go(func() { _ = n.Lead(n.stopping, n.tend) })
	n.watchDisk(&tasks)
	n.watchRevoked(&tasks)
	n.watchLeader(r, &tasks)

	select {
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), ErrAbrupt) {
			n.handOver(r)
		}
	case <-n.machine.failed:
		err = fmt.Errorf("cluster: the node stops: %w", n.machine.failure())
	case err = <-served:
		err = fmt.Errorf("cluster: serving the peer port: %w", err)
	case err = <-n.broken:
		err = fmt.Errorf("cluster: the node stops: %w", err)
	case <-n.storage.disk.failures():
		err = fmt.Errorf("cluster: the node stops: %w", n.storage.disk.failure())
	}
	n.stop()
	n.calls.close()
	end := func() error {
		tasks.Wait()
		n.drain()
		r.DeregisterObserver(observer)
		// The network goes first: Raft's goroutines may be waiting for a peer.
		down := r.Shutdown()
		n.inbox.Shut()
		err := errors.Join(n.network.Close(), down.Error())
		n.release()
		return errors.Join(err, n.storage.noteEnd(), n.storage.Close())
	}
	if n.storage.disk.trouble() != nil {
		return errors.Join(err, n.abandon(r, end))
	}
	return errors.Join(err, end())
}

// startRaft brings Raft up from what the storage holds.
func (n *Node) startRaft() (*raft.Raft, error) {
	logger := raftLogger(n.logger)
	conf := raft.DefaultConfig()
	conf.LocalID = n.id
	conf.HeartbeatTimeout = n.cfg.HeartbeatTimeout
	conf.ElectionTimeout = n.cfg.ElectionTimeout
	conf.LeaderLeaseTimeout = n.cfg.LeaderLeaseTimeout
	conf.SnapshotInterval = n.cfg.SnapshotInterval
	conf.SnapshotThreshold = n.cfg.SnapshotThreshold
	conf.TrailingLogs = n.cfg.TrailingLogs
	conf.CommitTimeout = n.cfg.CommitTimeout
	// Unbuffered: while Raft is busy with one entry, the commands that come gather
	// into the next (batch.go).
	conf.BatchApplyCh = false
	conf.NotifyCh = n.notify
	conf.Logger = logger
	conf.NoLegacyTelemetry = true
	// A node that was removed goes on as a follower nobody calls; the operator
	// stops it. Shutting Raft down under us would end nothing in an orderly way.
	conf.ShutdownOnRemove = false
	transport := n.holdOff(logger)
	r, err := n.newRaft(conf, transport)
	if failure := n.machine.failure(); failure != nil {
		// Raft would have gone on with an older snapshot, if it had one.
		if r != nil {
			err = errors.Join(err, r.Shutdown().Error())
		}
		return nil, errors.Join(failure, err)
	}
	if err != nil {
		return nil, fmt.Errorf("starting raft: %w", err)
	}
	if n.storage.arm != nil {
		n.storage.arm()
	}
	transport.Open(r)
	return r, nil
}

// handOver gives leadership to the most advanced follower, so that stopping
// costs the users no election.
func (n *Node) handOver(r *raft.Raft) {
	if r.State() != raft.Leader || len(r.GetConfiguration().Configuration().Servers) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), transferTimeout)
	defer cancel()
	if err := n.handOn(ctx, r); err != nil {
		n.logger.Warn("cluster: stopping without a successor", "error", err)
	}
}

// await waits for one of Raft's futures, or for the end of ctx; then the future
// is left to a goroutine that drain waits for.
func (n *Node) await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	n.futures.Go(func() { done <- f.Error() })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain waits until Raft has answered everything it was asked: a future that
// is pending when Raft shuts down may never be.
func (n *Node) drain() {
	drained := make(chan struct{})
	go func() { n.futures.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(drainTimeout):
		n.logger.Warn("cluster: stopping while raft still works on proposals")
	}
}

func (n *Node) close() error {
	return errors.Join(n.network.Close(), n.storage.Close())
}

// PeerAddr is the address by which peers reach this node.
func (n *Node) PeerAddr() string { return n.network.Addr() }

// enter begins a public call: its context ends with the node too.
func (n *Node) enter(ctx context.Context, timeout time.Duration) (context.Context, func(), error) {
	if !n.calls.enter() {
		return nil, nil, errStopping()
	}
	var cancel context.CancelFunc
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	stop := context.AfterFunc(n.stopping, cancel)
	return ctx, func() { stop(); cancel(); n.calls.leave() }, nil
}

func errStopping() *fsm.Error {
	return &fsm.Error{Code: fsm.CodeShuttingDown, Message: "this node is stopping; ask another", RetryAfter: retryAfter}
}
