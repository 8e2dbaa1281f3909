package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/cluster/formation"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftfix"
	"bivouac.dev/bivouac/cluster/raftfsm"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/cluster/records"
	"bivouac.dev/bivouac/cluster/replication"
	"bivouac.dev/bivouac/cluster/senders"
	"bivouac.dev/bivouac/fsm"
)

const (
	// transferTimeout bounds the leadership transfer before a stop.
	transferTimeout = 2 * time.Second
	// drainTimeout bounds the wait for Raft's pending answers before its shutdown. Raft answers at
	// once unless the disk hangs.
	drainTimeout = 5 * time.Second
)

// ErrAbrupt, as the cause of Run's cancelled context, stops the node without a leadership transfer.
// Tests use it to simulate a crash within one process.
var ErrAbrupt = errors.New("stop abruptly")

// Node is one member of the cluster. All methods may be called at any time from any goroutine.
// Before Run they report that there is no leader, after it that the node stops.
type Node struct {
	cfg     Config
	id      raft.ServerID
	logger  *slog.Logger
	store   *fsm.Store
	raftFSM *raftfsm.FSM
	storage raftstore.Store
	network Network
	metrics *raftmetrics.Metrics
	// credentials are the peer port's; nil in clustertest.
	credentials *peernet.Credentials
	// born is when the node was made.
	born time.Time

	// raft is nil until Run has started it.
	raft  atomic.Pointer[raft.Raft]
	hints atomic.Pointer[replication.Transport]
	inbox *raftfix.Inbox // Run's
	// onWrongMember is called when a member answers for another.
	onWrongMember func(asked raft.ServerID, target raft.ServerAddress, answered raft.ServerID)
	// transfers begins leadership transfers.
	transfers raftfix.Transfers
	// reloading is held while Raft's configuration is changed.
	reloading sync.Mutex
	started   atomic.Bool
	// notify receives each beginning and end of this node's leadership, in order.
	notify chan bool
	// pauses suspend the leader's work; leading is read-locked by that work.
	pauses  chan leadPause
	leading sync.RWMutex
	// broken receives the error of a Raft that must be restarted.
	broken chan error

	// calls are the public calls in progress. futures are goroutines that wait for Raft, guarding
	// those that wait for late objections to the start. stopping ends when Run begins to stop.
	calls    peernet.Gate
	futures  sync.WaitGroup
	guarding sync.WaitGroup
	stopping context.Context
	stop     context.CancelFunc

	leaders      leaderWatch
	terms        termWatch
	leaderReads  readBatcher // the leader's: commit index, verified
	reads        readBatcher // this node's: the index to wait for
	acknowledged fence       // what a stale read waits for
	fastestVoter fastestVoter
	entries      batcher // the leader's: commands for the log
	// appending is held while Raft takes commands that the state's version can read, and by a restore.
	appending   sync.Mutex
	outbox      batcher // commands for the leader
	promises    *formation.Promises
	addresses   addressBook
	identity    identity
	contacts    contactBook
	senders     *senders.Judge
	eligibility eligibility
	events      events
	room        room
	records     *records.Book
	caughtUp    atomic.Bool
	// challenging is set while the members decide about this node's start.
	challenging atomic.Bool
}

// New opens the data directory and listens on the peer address. It starts nothing. store must be
// empty; from then on only the node may write it.
func New(cfg Config, store *fsm.Store) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cluster configuration: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	creds, err := peernet.LoadCredentials(cfg.TLS, cfg.NodeName, cfg.Logger)
	if err != nil {
		return nil, err
	}
	storage, err := raftstore.Open(cfg.DataDir, StorageOptions(cfg.Logger))
	if err != nil {
		return nil, err
	}
	if err := storage.CheckCopy(cfg.DataDir); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	if err := storage.RecordFiles(cfg.DataDir); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	port, err := peernet.Open(portOptions(cfg), creds)
	if err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	if cfg.OpenEvents == nil {
		cfg.OpenEvents = func() (*eventstore.Store, error) {
			return eventstore.Open(filepath.Join(cfg.DataDir, EventsDir), eventstore.Options{Logger: cfg.Logger})
		}
	}
	if cfg.Free == nil {
		cfg.Free = func() (uint64, error) { return raftstore.Free(cfg.DataDir) }
	}
	n, err := NewWith(cfg, store, storage, port)
	if err != nil {
		return nil, errors.Join(err, port.Close(), storage.Close())
	}
	n.credentials = creds
	return n, nil
}

// Credentials are those of the peer port, nil for a node without one.
func (n *Node) Credentials() *peernet.Credentials { return n.credentials }

// NewWith is New with a given storage and network; clustertest keeps both in memory. It uses cfg
// without its files and addresses. Run closes both.
func NewWith(
	cfg Config, store *fsm.Store, storage raftstore.Store, network Network,
) (*Node, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	id, err := nodeID(storage.Stable, cfg.NodeName)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, id: id, logger: cfg.Logger,
		store: store, raftFSM: raftfsm.New(store), storage: storage, network: network,
		notify: make(chan bool, 1), pauses: make(chan leadPause), broken: make(chan error, 1),
	}
	n.stopping, n.stop = context.WithCancel(context.Background())
	n.born = time.Now()
	n.acknowledged.begun = n.born
	n.metrics = raftmetrics.New([]string{StateLeader, StateFollower, StateCandidate, StateStopped}, n.reading)
	n.storage.Logs = n.metrics.TimeLogs(storage.Logs)
	n.raftFSM.Took, n.raftFSM.OnApply = n.metrics.Apply, n.operated
	if n.events.init(cfg.OpenEvents, string(id)); cfg.OpenEvents != nil {
		n.raftFSM.Events = &n.events
	}
	n.onWrongMember = n.countWrongMembers()
	n.leaders.init()
	n.identity.init(uuid.NewString())
	n.eligibility.init()
	n.addresses.init(n.self(), n.servers)
	n.leaderReads = readBatcher{run: n.verifiedIndex, spawn: n.futures.Go}
	n.reads = readBatcher{run: n.readIndex, spawn: n.futures.Go, started: n.metrics.ReadRounds.Inc}
	n.entries = batcher{run: n.appendEntry, spawn: n.futures.Go, maxInFlight: 1}
	n.outbox = batcher{run: n.forwardBatch, spawn: n.futures.Go, maxInFlight: maxForwards}
	if n.records, err = records.Open(storage.Stable); err != nil {
		return nil, err
	}
	if n.senders, err = n.newJudge(); err != nil {
		return nil, err
	}
	if n.promises, err = formation.Open(storage.Stable); err != nil {
		return nil, err
	}
	if port, ok := network.(*peernet.Port); ok {
		port.Identify(peerHost{n})
	}
	return n, nil
}

// nodeID reads the node's id, or stores a new one on the first start: "<name>.<random>". Raft's
// configuration so has every member's name, and a node that lost its disk is another member.
func nodeID(stable raft.StableStore, name string) (raft.ServerID, error) {
	id, err := raftstore.Get(stable, raftstore.KeyNodeID)
	if err != nil {
		return "", fmt.Errorf("reading node id: %w", err)
	}
	if id == "" {
		id = NewNodeID(name)
		if err := raftstore.Set(stable, raftstore.KeyNodeID, id); err != nil {
			return "", fmt.Errorf("storing node id: %w", err)
		}
	}
	if owner := peernet.NodeName(raft.ServerID(id)); owner != name {
		return "", fmt.Errorf("the data directory belongs to node %q, this is %q", owner, name)
	}
	return raft.ServerID(id), nil
}

// NewNodeID makes a node's id, which begins with its name.
func NewNodeID(name string) string { return name + "." + uuid.NewString()[:13] }

// Run takes part in the cluster until ctx ends. Then it transfers leadership if it leads, and
// stops. It returns when every goroutine has ended and the data directory is closed. It returns an
// error when the node must not go on, as with a log entry or snapshot that it can't decode. Call it
// once.
func (n *Node) Run(ctx context.Context) error {
	if !n.started.CompareAndSwap(false, true) {
		return errors.New("cluster: Run was called twice")
	}
	unregister, err := n.metrics.Register(n.cfg.Registerer)
	if err != nil {
		return errors.Join(fmt.Errorf("registering metrics: %w", err), n.close())
	}
	defer unregister()
	defer n.guarding.Wait()
	var tasks sync.WaitGroup
	served := make(chan error, 1)
	// Serve from here on, so that nodes that start together can ask each other.
	tasks.Go(func() { served <- n.network.Serve(n.stopping, n.handle) })
	var r *raft.Raft
	if err = n.guard(ctx); err == nil {
		r, err = n.startRaft()
	}
	if err != nil {
		n.stop()
		n.calls.Close()
		tasks.Wait()
		n.stopTransport()
		return errors.Join(err, n.close())
	}
	observer := n.observeLeader(r, &tasks)
	n.raft.Store(r)
	tasks.Go(func() { n.watchTerms(n.stopping) })
	tasks.Go(func() { n.keepMembership(n.stopping) })
	tasks.Go(func() { n.catchUp(n.stopping) })
	tasks.Go(func() { _ = n.Lead(n.stopping, n.reconcileMembers) })
	tasks.Go(func() { n.storage.Watch(n.stopping) })
	tasks.Go(func() { n.boundLog(n.stopping, r) })
	tasks.Go(func() { n.announceCommits(n.stopping, r) })
	n.keepEvents(&tasks)
	tasks.Go(func() { n.metrics.WatchDisk(n.stopping, &n.storage) })
	n.watchRevoked(&tasks)
	n.watchLeader(r, &tasks)

	select {
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), ErrAbrupt) {
			n.transferBeforeStop(r)
		}
	case <-n.raftFSM.Failed():
		err = fmt.Errorf("cluster: the node stops: %w", n.raftFSM.Failure())
	case err = <-served:
		err = fmt.Errorf("cluster: serving the peer port: %w", err)
	case err = <-n.broken:
		err = fmt.Errorf("cluster: the node stops: %w", err)
	case <-n.storage.Watchdog().Failed():
		err = fmt.Errorf("cluster: the node stops: %w", n.storage.Watchdog().Failure())
	}
	n.stop()
	n.calls.Close()
	end := func() error {
		tasks.Wait()
		n.drain()
		r.DeregisterObserver(observer)
		// The network closes before Raft has ended: Raft's goroutines may wait for a peer.
		down := r.Shutdown()
		n.inbox.Shut()
		err := errors.Join(n.network.Close(), down.Error())
		n.stopTransport()
		return errors.Join(err, n.events.close(), n.storage.MarkEnd(), n.storage.Close())
	}
	if n.storage.Watchdog().Trouble() != nil || n.events.failed() {
		return errors.Join(err, n.abandon(r, end))
	}
	return errors.Join(err, end())
}

// startRaft starts Raft on the storage.
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
	// Unbuffered: while Raft handles one entry, arriving commands form the next (batch.go).
	conf.BatchApplyCh = false
	conf.NotifyCh = n.notify
	conf.Logger = logger
	conf.NoLegacyTelemetry = true
	// A removed node goes on as a follower without a leader, and the operator stops it. A shutdown of
	// Raft alone would leave the node half stopped.
	conf.ShutdownOnRemove = false
	transport := n.newTransport(logger)
	r, err := n.newRaft(conf, transport)
	if failure := n.raftFSM.Failure(); failure != nil {
		// With an older snapshot Raft would have started from that.
		if r != nil {
			err = errors.Join(err, r.Shutdown().Error())
		}
		return nil, errors.Join(failure, err)
	}
	if err != nil {
		return nil, fmt.Errorf("starting raft: %w", err)
	}
	n.storage.Arm()
	n.senders.Begin(r)
	transport.Open(r)
	return r, nil
}

// HandOver transfers leadership to another voter if this node leads, for a node that is about to
// stop. Without a successor it leads on. It returns within seconds; the other calls go on.
func (n *Node) HandOver() {
	if r := n.raft.Load(); r != nil && n.stopping.Err() == nil {
		n.transferBeforeStop(r)
	}
}

// transferBeforeStop transfers leadership to the most advanced follower, so that a stop causes no
// election timeout.
func (n *Node) transferBeforeStop(r *raft.Raft) {
	if r.State() != raft.Leader || len(r.GetConfiguration().Configuration().Servers) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), transferTimeout)
	defer cancel()
	if err := n.transferToAny(ctx, r); err != nil {
		n.logger.Warn("cluster: stopping without a successor", "error", err)
	}
}

// await waits for one of Raft's futures or for the end of ctx. A future left behind is awaited by
// drain.
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

// drain waits until Raft has answered all calls. A future that is pending at Raft's shutdown may
// never be answered.
func (n *Node) drain() {
	drained := make(chan struct{})
	go func() { n.futures.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(drainTimeout):
		n.logger.Warn("cluster: stopping while raft still has pending calls")
	}
}

func (n *Node) close() error {
	return errors.Join(n.network.Close(), n.events.close(), n.storage.Close())
}

// PeerAddr is the address at which peers reach this node.
func (n *Node) PeerAddr() string { return n.network.Addr() }

// enter begins a public call. Its context also ends when the node stops.
func (n *Node) enter(ctx context.Context, timeout time.Duration) (context.Context, func(), error) {
	if !n.calls.Enter() {
		return nil, nil, errStopping()
	}
	var cancel context.CancelFunc
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	stop := context.AfterFunc(n.stopping, cancel)
	return ctx, func() { stop(); cancel(); n.calls.Leave() }, nil
}

func errStopping() *fsm.Error {
	return &fsm.Error{Code: fsm.CodeShuttingDown, Message: "this node is stopping; ask another", RetryAfter: retryAfter}
}
