package cluster_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// rogue has the stolen certificate of a node, and talks to the peer port.
type rogue struct {
	*real
	files peernet.TLSFiles
}

// testKey is an API key with the parts of the product's.
func testKey(user string, operator bool) (cluster.Operator, *fsm.APIKeyCreateBody) {
	lookup := strings.Repeat(user[:1], 12)
	value := "bvk_" + lookup + "_" + strings.Repeat("S", 31) + lookup
	sum := sha256.Sum256([]byte(value))
	return cluster.Operator{UserID: user, Lookup: lookup, Key: value},
		&fsm.APIKeyCreateBody{
			Lookup:   lookup,
			Hash:     hex.EncodeToString(sum[:]),
			Name:     "test",
			UserID:   user,
			Operator: operator,
		}
}

// propose sends a command to node i as `bivouac keys bootstrap` does.
func (r *rogue) propose(ctx context.Context, i int, body fsm.Body, claims string) error {
	r.t.Helper()
	c, err := cluster.NewPeerClient(r.files, r.nodes[i].cfg.PeerAddress)
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	cmd := fsm.NewCommand(uuid.NewString(), time.Now(), "", body)
	if claims != "" {
		cmd.UserID, cmd.Credential = "admin", fsm.Credential{Lookup: claims}
	}
	return r.answered(func() error { _, err := c.Propose(ctx, cmd); return err })
}

// answered repeats what a busy machine's lost leader did not answer, until it is answered.
func (r *rogue) answered(ask func() error) (err error) {
	r.t.Helper()
	eventually(r.t, func() bool {
		err = ask()
		code := fsm.CodeOf(err)
		return code != fsm.CodeOutcomeUnknown && code != fsm.CodeNoLeader && code != fsm.CodeTimeout
	}, func() string { return fmt.Sprintf("no answer: %v", err) })
	return err
}

// apply sends a command to the leader as a follower does, behind the given bytes.
func (r *rogue) apply(leader int, before []byte, cmd fsm.Command) fsm.Code {
	r.t.Helper()
	creds, err := peernet.LoadCredentials(r.files, "", slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	c := peernet.NewClient(creds)
	defer c.Close()
	data, err := cmd.Encode()
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := c.Call(r.t.Context(), r.nodes[leader].cfg.PeerAddress, "apply", append(before, data...))
	if err != nil {
		r.t.Fatal(err)
	}
	var got struct {
		Certainty string     `json:"certainty"`
		Error     *fsm.Error `json:"error"`
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		r.t.Fatal(err)
	}
	if got.Error == nil {
		return fsm.Code(got.Certainty)
	}
	return got.Error.Code
}

// operatorBodies are commands that need an operator's key.
func operatorBodies() []fsm.Body {
	_, create := testKey("thief", true)
	_, user := testKey("victim", false)
	return []fsm.Body{
		create, user, &fsm.APIKeyRevokeBody{ID: 1}, &fsm.APIKeyEnableBody{ID: 1}, &fsm.UserConfigureBody{UserID: "thief"},
		&fsm.InstallationConfigureBody{}, &fsm.SpecDeleteBody{ID: "s"}, &fsm.CertificateRevokeBody{
			Fingerprint: strings.Repeat("a", 64),
			Node:        "n0",
		},
		&fsm.HoldReleaseBody{}, &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion},
	}
}

// TestReal_StolenCertificateIsNoOperator: whoever has a node's certificate can't make keys, change
// users, limits, specs or members through the peer port, on any node, whatever key id he claims. With
// an operator's key every node takes the same commands.
func TestReal_StolenCertificateIsNoOperator(t *testing.T) {
	t.Parallel()
	r := &rogue{real: newReal(t, 3)}
	r.startAll()
	r.files = r.issue("stolen", "n2", r.ca, time.Hour)
	eventually(t, func() bool {
		for _, n := range r.nodes {
			if !n.store.View().Active(fsm.VersionAccess) {
				return false
			}
		}
		return true
	}, func() string { return "the protocol version is not raised" })
	admin, first := testKey("admin", true)
	first.Bootstrap = true
	if err := r.propose(t.Context(), 0, first, ""); err != nil {
		t.Fatalf("the first key: %v", err)
	}
	asAdmin := cluster.AsOperator(t.Context(), admin)
	user, body := testKey("user", false)
	if err := r.propose(asAdmin, 1, body, ""); err != nil {
		t.Fatalf("a user's key: %v", err)
	}

	for i := range r.nodes {
		for _, body := range operatorBodies() {
			for what, ctx := range map[string]context.Context{
				"": t.Context(), admin.Lookup: t.Context(), user.Lookup: cluster.AsOperator(t.Context(), user),
				"guessed": cluster.AsOperator(t.Context(),
					cluster.Operator{UserID: "admin", Lookup: admin.Lookup, Key: admin.Key[:59] + "x"}),
			} {
				claims := strings.TrimPrefix(what, "guessed")
				if err := r.propose(ctx, i, body, claims); fsm.CodeOf(err) != fsm.CodeForbidden {
					t.Errorf("n%d takes %s of a stranger with the certificate of a node (claims %q): %v", i, body.CommandType(),
						what, err)
				}
			}
		}
	}
	r.forwarded(admin)
	r.members(t.Context(), false)
	if n := len(r.nodes[0].store.View().APIKeys()); n != 2 {
		t.Errorf("there are %d keys", n)
	}
	// What users ask for needs no operator, and the certificate is good for that.
	if err := r.propose(t.Context(), 1, &fsm.SandboxTouchBody{}, ""); fsm.CodeOf(err) == fsm.CodeForbidden {
		t.Errorf("a touch: %v", err)
	}

	for i := range r.nodes {
		_, body := testKey(string(rune('p'+i))+"erson", true)
		if err := r.propose(asAdmin, i, body, ""); err != nil {
			t.Errorf("n%d refuses an operator: %v", i, err)
		}
		if _, err := r.nodes[i].node.Propose(asAdmin,
			fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.UserConfigureBody{UserID: "person"})); err != nil {
			t.Errorf("n%d refuses its own operator: %v", i, err)
		}
	}
	r.members(asAdmin, true)
	r.searchFor(admin.Key)
}

// forwarded sends to the leader what a follower sends, with proofs that are not for the command.
func (r *rogue) forwarded(admin cluster.Operator) {
	r.t.Helper()
	cmd := func(body fsm.Body) fsm.Command {
		c := fsm.NewCommand(uuid.NewString(), time.Now(), "admin", body)
		c.Credential = fsm.Credential{Lookup: admin.Lookup}
		return c
	}
	_, body := testKey("thief", true)
	data, err := cmd(&fsm.APIKeyRevokeBody{ID: 2}).Encode()
	if err != nil {
		r.t.Fatal(err)
	}
	overheard := fsm.OperatorProof(admin.Key, data)
	for what, before := range map[string][]byte{
		"no proof": nil, "an empty proof": {2, 0}, "a short proof": {2, 1, 'x'}, "a cut proof": {2, 200, 1},
		"a huge proof": {
			2,
			0xff,
			0xff,
			0xff,
			0xff,
			0x0f,
		}, "the proof of another command": append([]byte{2, byte(len(overheard))}, overheard...),
	} {
		code := r.apply(r.leader(), before, cmd(body))
		if code != fsm.CodeForbidden && code != fsm.CodeProtocol && code != fsm.CodeInvalid {
			r.t.Errorf("the leader takes a key of a follower with %s: %s", what, code)
		}
	}
}

// members asks every node for a change of the members. The removal is of a member that there is not:
// only who may remove one is told.
func (r *rogue) members(ctx context.Context, may bool) {
	r.t.Helper()
	want := fsm.CodeForbidden
	if may {
		want = fsm.CodeNotFound
	}
	for i := range r.nodes {
		c, err := cluster.NewPeerClient(r.files, r.nodes[i].cfg.PeerAddress)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := r.answered(func() error {
			return c.RemoveServer(ctx, "n9",
				cluster.RemoveOptions{Revoke: true})
		}); fsm.CodeOf(err) != want {
			r.t.Errorf("n%d: a removal: %v, want %s", i, err, want)
		}
		c.Close()
		if !may {
			continue
		}
		if err := r.answered(func() error { return r.nodes[i].node.TransferLeadership(ctx, "n9") }); fsm.CodeOf(err) != want {
			r.t.Errorf("n%d: a transfer: %v, want %s", i, err, want)
		}
		if err := r.answered(func() error {
			return r.nodes[i].node.ReplaceServer(ctx, "n9", "n8",
				cluster.RemoveOptions{})
		}); fsm.CodeOf(err) != want {
			r.t.Errorf("n%d: a replacement: %v, want %s", i, err, want)
		}
	}
}

// searchFor finds no file of the nodes with the key.
func (r *rogue) searchFor(key string) {
	r.t.Helper()
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(key[17:])) {
			r.t.Errorf("%s holds the operator's key", path)
		}
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
}
