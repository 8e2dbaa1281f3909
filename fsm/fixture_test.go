package fsm

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"
)

// testEpoch is the time of the first command of a fixture.
var testEpoch = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// fixture drives one store as cluster does: every command goes through the bytes of the log. Each
// command is one second later than the one before.
type fixture struct {
	t     testing.TB
	store *Store
	index uint64
	now   time.Time
}

func newFixture(t testing.TB) *fixture {
	return &fixture{t: t, store: NewStore(), now: testEpoch}
}

// command builds the next command.
func (f *fixture) command(user string, body Body) Command {
	f.index++
	f.now = f.now.Add(time.Second)
	return NewCommand(fmt.Sprintf("c%d", f.index), f.now, user, body)
}

// apply applies a command at the fixture's index.
func (f *fixture) apply(cmd Command) (Result, error) {
	return f.store.Apply(f.index, recode(f.t, cmd))
}

// do applies a body that must succeed.
func (f *fixture) do(user string, body Body) Result {
	f.t.Helper()
	r, err := f.apply(f.command(user, body))
	if err != nil {
		f.t.Fatalf("%s: %v", body.CommandType(), err)
	}
	return r
}

// fails applies a body that must fail with a code.
func (f *fixture) fails(code Code, user string, body Body) *Error {
	f.t.Helper()
	_, err := f.apply(f.command(user, body))
	if CodeOf(err) != code {
		f.t.Fatalf("%s: got %v, want an error with code %s", body.CommandType(), err, code)
	}
	var e *Error
	if !errors.As(err, &e) {
		f.t.Fatalf("%s: got %T, want *Error", body.CommandType(), err)
	}
	return e
}

// open prepares a cluster with one spec.
func (f *fixture) open() *fixture {
	f.t.Helper()
	f.do("", &TermOpenBody{Term: 1, Node: "n1", ClusterID: "test"})
	f.do("", &SpecApplyBody{Specs: []Spec{dockerSpec("py")}})
	return f
}

// sandbox creates a sandbox.
func (f *fixture) sandbox(user, id string) *Sandbox {
	f.t.Helper()
	return f.do(user, newSandboxBody(id)).Sandbox
}

// conversation creates a conversation with the sandbox sb-<id>.
func (f *fixture) conversation(user, id string) *Conversation {
	f.t.Helper()
	f.do(user, &StartTaskCreateBody{ID: "t-" + id, ConversationID: id})
	f.do("", &StartTaskBindBody{ID: "t-" + id, SandboxID: "sb-" + id, Create: newSandboxBody("sb-" + id)})
	f.do("", &StartTaskFinishBody{ID: "t-" + id, Conversation: Conversation{ID: id, AgentKind: "openhands"}})
	return f.store.View().Conversation(user, id)
}

// recode sends a command through its encoding.
func recode(t testing.TB, cmd Command) Command {
	t.Helper()
	raw, err := cmd.Encode()
	if err != nil {
		t.Fatal(err)
	}
	out, err := DecodeCommand(raw)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newSandboxBody(id string) *SandboxCreateBody {
	return &SandboxCreateBody{
		ID: id, KeyRef: SecretRef{Path: "sandboxes/" + id + "/session", Version: 1}, KeyHash: sha(id),
	}
}

func warmSandboxBody() *SandboxCreateBody { return &SandboxCreateBody{Warm: true} }

func newMember(id, spec string) *PoolAddBody {
	return &PoolAddBody{
		ID: id, SpecID: spec, InitRef: SecretRef{Path: "sandboxes/" + id + "/init", Version: 1},
		KeyRef: SecretRef{Path: "sandboxes/" + id + "/session", Version: 1}, KeyHash: sha(id),
	}
}

func dockerSpec(id string) Spec {
	return Spec{ID: id, Template: Template{
		Driver: DriverDocker, Image: "agent:1", WorkingDir: "/workspace/project", CPU: 500, Memory: 1024,
		Ports: map[string]int{PortAgentServer: 8000}, NetworkMode: "bridge", VolumePath: "/workspace",
	}}
}

// sha is the SHA-256 of s in hex.
func sha(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// dump returns every row by table and key, without the command-id table.
func dump(s *Store) map[string]json.RawMessage {
	rows := map[string]json.RawMessage{}
	p := s.Snapshot()
	meta := p.view.meta
	meta.Forgotten = time.Time{} // belongs to the command-id table
	meta.LastCommand = 0         // moves with every command, like the index
	raw, _ := json.Marshal(meta)
	rows["cluster"] = raw
	for table, row := range p.rows() {
		if _, ok := row.(*commandRecord); ok {
			continue
		}
		raw, err := json.Marshal(row)
		if err != nil {
			panic(err)
		}
		rows[table+" "+rowName(row)] = raw
	}
	for u := range withPrefix[usageRow](p.view.txn, tableUsage, indexID, nil) {
		if u.Usage == (Usage{StateBytes: u.StateBytes, EventBytes: u.EventBytes, doneBytes: u.doneBytes}) {
			continue // TestUsageIsARecount has the bytes
		}
		rows["usage "+cmp.Or(u.user, "(all)")] = fmt.Appendf(nil,
			`{"running":%d,"total":%d,"cpu":%d,"memory":%d,"starts":%d}`,
			u.Running, u.Total, u.CPU, u.Memory, u.starts)
	}
	for r := range withPrefix[secretRef](p.view.txn, tableSecretRefs, indexID, nil) {
		rows[fmt.Sprintf("secret_refs %s@%d", r.ref.Path, r.ref.Version)] = fmt.Appendf(nil, `{"count":%d}`, r.count)
	}
	return rows
}

// rowName names a row within its table.
func rowName(row any) string {
	switch r := row.(type) {
	case *User:
		return r.ID
	case *APIKey:
		return fmt.Sprint(r.ID)
	case *Settings:
		return r.UserID
	case *Provider:
		return r.UserID + "/" + string(r.Type)
	case *CustomSecret:
		return r.UserID + "/" + r.Name
	case *Spec:
		return r.ID
	case *Sandbox:
		return r.ID
	case *Conversation:
		return r.UserID + "/" + r.ID
	case *StartTask:
		return r.ID
	case *recentStart:
		return fmt.Sprintf("%s/%d", r.UserID, r.Index)
	case *replacedSecret:
		return fmt.Sprint(r.Path, "@", r.Version)
	case *Setup:
		return r.UserID + "/" + r.Hash[:8]
	case *Profile:
		return r.UserID + "/" + string(r.Kind) + "/" + r.Name
	case *Session:
		return r.UserID + "/" + r.Hash[:8]
	case *SignInCode:
		return r.UserID + "/" + r.Hash[:8]
	case *Device:
		return r.Hash[:8]
	case *Orphan:
		return r.Kind + "/" + r.Sandbox
	}
	panic(fmt.Sprintf("no name for a %T", row))
}

// persist writes a snapshot of the store.
func persist(t testing.TB, s *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Snapshot().Persist(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// restored returns a new store from another's snapshot.
func restored(t testing.TB, s *Store) *Store {
	t.Helper()
	n := NewStore()
	if err := n.Restore(bytes.NewReader(persist(t, s))); err != nil {
		t.Fatal(err)
	}
	return n
}
