package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/snapshotfile"
	"bivouac.dev/bivouac/httpapi/operators"
	"bivouac.dev/bivouac/httpapi/wire"
)

// fakeCluster is a one-node cluster with the real store and injectable faults.
type fakeCluster struct {
	observed atomic.Int64
	mu       sync.Mutex
	store    *fsm.Store
	index    uint64
	// proposed counts the commands that reached the log.
	proposed int
	// proposeErr and viewErr fail every Propose and every linearizable View. lostErr is returned
	// after the command was applied.
	proposeErr, viewErr, lostErr, readyErr, staleErr error
	// viewErrLater becomes viewErr after the next write.
	viewErrLater error
	// members are the requested membership changes; memberErr fails them.
	members   []string
	memberErr error
	// behind, if set, is what stale views show. With catchUp a linearizable view or an applied
	// command ends that, as on a real node.
	behind  *fsm.View
	catchUp bool
	// unfenced, if set, is what cluster.Local shows.
	unfenced *fsm.View
	// contact is the time of the last contact with the leader: a minute ago, so that the proxy reads
	// linearizably and its sessions go on.
	contact time.Time
	// log has every encoded command; outcomes has the results of those proposed while behind was
	// set.
	log      [][]byte
	outcomes []error
	// events are the stored events of each chain.
	events map[fsm.ChainKey][][]byte
}

func (c *fakeCluster) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.proposeErr, ctx.Err()); err != nil {
		return fsm.Result{}, err
	}
	if err := fsm.Validate(cmd.Body); err != nil {
		return fsm.Result{}, err
	}
	// The command is encoded and decoded, as on a real node.
	encode := cmd.Encode
	if c.store.View().Active(fsm.VersionBinary) {
		encode = cmd.EncodeBinary
	}
	b, err := encode()
	if err != nil {
		return fsm.Result{}, err
	}
	decoded, err := fsm.DecodeCommand(b)
	if err != nil {
		return fsm.Result{}, err
	}
	c.log = append(c.log, b)
	c.index++
	c.proposed++
	c.viewErr = firstErr(c.viewErrLater, c.viewErr)
	o := c.store.ApplyBatch([]fsm.Entry{{Index: c.index, Command: decoded}})[0]
	res, err := o.Result, error(nil)
	if o.Err != nil {
		err = o.Err
	}
	c.keepEvents(c.store.EventChanges())
	if c.behind != nil {
		c.outcomes = append(c.outcomes, err)
	}
	c.heard()
	if c.lostErr != nil {
		return fsm.Result{}, c.lostErr
	}
	if err != nil {
		return fsm.Result{}, err
	}
	// So is the result, as on a follower.
	b, err = json.Marshal(res)
	if err != nil {
		return fsm.Result{}, err
	}
	var out fsm.Result
	return out, json.Unmarshal(b, &out)
}

func (c *fakeCluster) View(_ context.Context, consistency cluster.Consistency) (*fsm.View, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if consistency == cluster.Local && c.unfenced != nil {
		return c.unfenced, nil
	}
	if consistency != cluster.Linearizable {
		if c.behind != nil {
			return c.behind, nil
		}
		return c.store.View(), nil
	}
	if c.viewErr != nil {
		return nil, c.viewErr
	}
	c.heard()
	return c.store.View(), nil
}

// heard makes this node's own store current.
func (c *fakeCluster) heard() {
	if c.catchUp {
		c.behind = nil
	}
}

func (c *fakeCluster) StateSnapshot(ctx context.Context, consistency cluster.Consistency) (*fsm.Snapshot, error) {
	if _, err := c.View(ctx, consistency); err != nil {
		return nil, err
	}
	return c.store.Snapshot(), nil
}

// fakeBackups are two backups, one of them invalid.
type fakeBackups struct{ err error }

func (b fakeBackups) Backups(context.Context) (backup.Report, error) {
	at := time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC)
	return backup.Report{
		Node: "n1", Directory: "/backups", Interval: 3600, Retain: 24,
		Newest: fsm.Backup{
			File:       "b.snap",
			Node:       "n2",
			Index:      7,
			Time:       at,
			Size:       100,
			Failure:    "no room",
			FailedNode: "n1",
			FailedTime: at,
		},
		Files: []backup.File{
			{
				File:     "b.snap",
				Size:     100,
				Verified: true,
				Manifest: snapshotfile.Manifest{Kind: "bivouac-snapshot", Format: 1, Created: at, Index: 7},
			},
			{File: "a.snap", Size: 9, Problem: "the file is truncated"},
		},
	}, b.err
}

// fakeRestorer accepts no file.
type fakeRestorer struct{}

func (fakeRestorer) Restore(context.Context, io.ReadSeeker, cluster.RestoreOptions) (cluster.Restored, error) {
	return cluster.Restored{}, fsm.Errorf(fsm.CodeInvalid, "the file is no snapshot")
}

func (c *fakeCluster) Status() cluster.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cluster.Status{Node: "n1", ID: "1", State: "leader", Term: 3, Leader: "n1", LeaderID: "1",
		LeaderAddress: "127.0.0.1:7001", ProtocolVersion: 1, KnownVersion: 1, LastContact: c.contact,
		Servers: []cluster.Server{{Name: "n1", ID: "1", Address: "127.0.0.1:7001", Voter: true}}}
}

func (c *fakeCluster) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readyErr
}

func (c *fakeCluster) ReadyStale() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.staleErr
}

func (c *fakeCluster) Members(context.Context) []cluster.Member {
	return []cluster.Member{
		{
			Server: c.Status().Servers[0], Role: cluster.RoleLeader, State: "leader", KnownVersion: 1, AppliedIndex: 7,
			Lag: new(uint64(0)), LastContact: new(int64(0)),
			ClockAhead: new(int64(-3)), ClockError: new(int64(1)), Report: c.Report(),
		},
		{
			Server: cluster.Server{Name: "n2", ID: "2", Address: "127.0.0.1:7002"},
			Role:   cluster.RoleNonvoter,
			Error:  "connection refused",
		},
	}
}

func (c *fakeCluster) Report() *cluster.Report {
	return &cluster.Report{
		Version: "v1", Ready: true, Disks: []cluster.Disk{
			{Name: cluster.DiskData, Free: 1, Size: 2},
			{Name: cluster.DiskBackup, Error: "away"},
		},
		Certificates: []cluster.Certificate{
			{Name: "peer", Expires: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), DaysLeft: 40},
		},
		Services: []cluster.Service{
			{Name: cluster.ServiceNomad, Reachable: true},
			{Name: cluster.ServiceVault, Sealed: true, Error: "sealed"},
		},
		Differs: []string{"policy"},
	}
}

func (c *fakeCluster) TransferLeadership(_ context.Context, to string) error {
	return c.changeMembers("transfer " + to)
}

func (c *fakeCluster) RemoveServer(_ context.Context, name string, o cluster.RemoveOptions) error {
	return c.changeMembers(fmt.Sprintf("remove %s %+v", name, o))
}

func (c *fakeCluster) ReplaceServer(_ context.Context, oldName, newName string, o cluster.RemoveOptions) error {
	return c.changeMembers(fmt.Sprintf("replace %s %s %+v", oldName, newName, o))
}

func (c *fakeCluster) SetProtocol(_ context.Context, version int) error {
	return c.changeMembers(fmt.Sprintf("protocol %d", version))
}

func (c *fakeCluster) changeMembers(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memberErr != nil {
		return c.memberErr
	}
	c.members = append(c.members, what)
	c.viewErr = firstErr(c.viewErrLater, c.viewErr)
	return nil
}

func (c *fakeCluster) set(f func(c *fakeCluster)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *fakeCluster) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proposed
}

// fakeSecrets is an in-memory secret store with injectable faults.
type fakeSecrets struct {
	mu      sync.Mutex
	entries map[string][]map[string]string
	writes  int
	reads   int
	err     error
	// failPath fails the writes of one path.
	failPath string
}

var errStoreAway = fsm.Errorf(fsm.CodeSecretStore, "vault is sealed")

func (s *fakeSecrets) Write(_ context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return fsm.SecretRef{}, s.err
	}
	if s.failPath != "" && strings.Contains(path, s.failPath) {
		return fsm.SecretRef{}, errStoreAway
	}
	s.writes++
	s.entries[path] = append(s.entries[path], maps.Clone(data))
	return fsm.SecretRef{Path: path, Version: len(s.entries[path])}, nil
}

func (s *fakeSecrets) Read(_ context.Context, ref fsm.SecretRef) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	s.reads++
	path, version := ref.Path, ref.Version
	if version < 1 || version > len(s.entries[path]) || s.entries[path][version-1] == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "no such secret")
	}
	return maps.Clone(s.entries[path][version-1]), nil
}

func (s *fakeSecrets) Delete(_ context.Context, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, path)
	return s.err
}

// deleteFormer deletes the versions of an entry before the last, as the scheduler does.
func (s *fakeSecrets) deleteFormer(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.entries[path][:len(s.entries[path])-1])
}

// paths returns the paths that have an entry.
func (s *fakeSecrets) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.entries))
}

func (s *fakeSecrets) set(f func(s *fakeSecrets)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *fakeSecrets) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// last returns an entry's latest version.
func (s *fakeSecrets) last(path string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.entries[path]); n > 0 {
		return s.entries[path][n-1]
	}
	return nil
}

// fakeAgents responds in place of the agent servers.
type fakeAgents struct {
	mu sync.Mutex
	fn func(ctx context.Context, baseURL, key string, ids []string) (map[string]string, error)
	// metrics are those of conversations, by id.
	metrics map[string]string
	// messages are the sent messages, as "url key conversation text run", stored the ids of those that
	// have one. sendErr fails sending.
	messages []string
	stored   map[string]bool
	sendErr  error
	call     func(ctx context.Context, baseURL, key string, q AgentRequest) ([]byte, error)
}

func (a *fakeAgents) SendMessage(_ context.Context, baseURL, key, id string, m AgentMessage) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sendErr != nil {
		return a.sendErr
	}
	if m.EventID != "" {
		if a.stored[m.EventID] {
			return nil
		}
		if a.stored == nil {
			a.stored = map[string]bool{}
		}
		a.stored[m.EventID] = true
	}
	a.messages = append(a.messages, sprint("%s %s %s %s %v", baseURL, key, id, m.Content[0].Text, m.Run))
	return nil
}

// Call implements Agents.
func (a *fakeAgents) Call(ctx context.Context, baseURL, key string, q AgentRequest) ([]byte, error) {
	a.mu.Lock()
	call := a.call
	a.mu.Unlock()
	if call == nil {
		return cannedAnswer(q)
	}
	return call(ctx, baseURL, key, q)
}

// cannedAnswer is what an agent server with one conversation and a project answers.
func cannedAnswer(q AgentRequest) ([]byte, error) {
	at, _, _ := strings.Cut(q.Path, "?")
	if strings.HasPrefix(at, "/api/conversations/") {
		at = "conversation" + at[len("/api/conversations/")+36:]
	}
	text, known := map[string]string{
		"conversation":                  `{"workspace":{"working_dir":"/workspace/project/app"}}`,
		"conversation/switch_acp_model": `{"success":true}`,
		"conversation/switch_llm":       `{"success":true}`,
		"conversation/events/count":     `2`,
		"conversation/events/search":    `{"items":[{"id":"e-1","kind":"MessageEvent"},{"id":"../e 2"}],"next_page_id":null}`,
		"/api/file/download":            "# Plan\n",
		"/api/bash/start_bash_command":  `{"id":"b-1"}`,
		"/api/bash/bash_events/search": `{"items":[{"stdout":"./b/x.go\n./a.md\n/etc/passwd\n","exit_code":null},` +
			`{"order":1,"stdout":"./b/\u0000.go\n","exit_code":0}]}`,
		"/api/git/changes": `[{"status":"UPDATED","path":"a.go"}]`,
		"/api/git/diff":    `{"modified":"b","original":null}`,
		"/api/skills": `{"skills":[{"name":"a","type":"repo","content":"x",` +
			`"triggers":null,"source":"/s"},{"name":"k","content":"y","triggers":["t"]}]}`,
		"/api/hooks": `{"hook_config":{"stop":[{"matcher":"*","hooks":[{"command":"true"}]}],"pre_tool_use":[]}}`,
	}[at]
	if !known {
		return nil, &AgentError{Status: 404, Cause: errors.New("no such path")}
	}
	return []byte(text), nil
}

func (a *fakeAgents) sent() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.messages)
}

func (a *fakeAgents) States(
	ctx context.Context,
	baseURL, key string,
	ids []string,
) (map[string]AgentState, error) {
	a.mu.Lock()
	fn := a.fn
	a.mu.Unlock()
	if fn == nil {
		return nil, errors.New("no agent server")
	}
	statuses, err := fn(ctx, baseURL, key, ids)
	out := map[string]AgentState{}
	for id, status := range statuses {
		out[id] = AgentState{Status: status, Metrics: json.RawMessage(a.metrics[id])}
	}
	return out, err
}

// Observe implements Observer. The log ends when the test's request does.
func (c *fakeCluster) Observe(_ context.Context, node string, o cluster.Observation) ([]byte, error) {
	if node != "" && node != "n1" {
		return nil, fsm.Errorf(fsm.CodeNotFound, "no member is named %q", node)
	}
	if o.Kind == cluster.ObserveLog && c.observed.Add(1) > 2 {
		return nil, fsm.Errorf(fsm.CodeShuttingDown, "the node stops")
	}
	return []byte(o.Kind + " " + o.Name + "\n"), nil
}

// TryMove implements Clients.
func (twoClients) TryMove(context.Context, string, []string, []*fsm.Sandbox) error { return nil }

// twoClients are machines that take jobs, and one that is down.
type twoClients struct{}

func (twoClients) Clients(context.Context, string) ([]wire.SandboxClient, error) {
	return []wire.SandboxClient{
		{ID: "down", Status: "down"}, {
			ID:       "other",
			Status:   operators.StatusReady,
			Eligible: true,
		}, {ID: "ready", Status: operators.StatusReady, Eligible: true},
	}, nil
}

// withAgentServers has every sandbox's agent server answer nothing, wherever the sandbox is.
func withAgentServers(c *Config) { c.Proxy.Transport = silentServers{} }

type silentServers struct{}

// RoundTrip implements http.RoundTripper.
func (silentServers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody, Request: r,
		Header: http.Header{"Content-Type": {"application/octet-stream"}, "Content-Length": {"0"}},
	}, nil
}
