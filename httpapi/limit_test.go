package httpapi

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
)

// limited sets the installation's limits.
func (h *harness) limited(in fsm.Installation) *harness {
	h.t.Helper()
	h.apply("", &fsm.InstallationConfigureBody{Installation: in})
	return h
}

// refused checks a limit's 429.
func (r reply) refused(t *testing.T, limit string) {
	t.Helper()
	var body struct{ Detail, Limit string }
	r.want(t, 429).json(t, &body)
	if body.Limit != limit || !strings.Contains(body.Detail, "limit") || r.header.Get("Retry-After") == "" {
		t.Fatalf("%s, Retry-After %q", r.body, r.header.Get("Retry-After"))
	}
}

func TestLimit_RefusesBeforeAnythingIsStored(t *testing.T) {
	h := newHarness(t).withSpec().withSettings().limited(fsm.Installation{PerUser: fsm.Limits{Running: 2}})
	sb := h.createSandbox(h.alice)
	h.createSandbox(h.alice)
	writes, commands := h.secrets.written(), h.cluster.count()
	h.do(h.alice, "POST", pathSandboxes, "").refused(t, "user_running_sandboxes")
	h.do(h.alice, "POST", pathConversations, `{"secrets":{"A":"b"}}`).refused(t, "user_running_sandboxes")
	var v0 map[string]any
	res := h.do(h.alice, "POST", v0Path, `{"mcp_config":{}}`)
	res.refused(t, "user_running_sandboxes")
	if res.json(t, &v0); v0["status"] != "error" || v0["msg_id"] == nil || v0["message"] != v0["detail"] {
		t.Fatalf("not a V0 failure: %s", res.body)
	}
	if h.secrets.written() != writes || h.cluster.count() != commands {
		t.Fatal("a refused start left something behind")
	}
	// Requests that need no new sandbox are not refused.
	h.do(h.alice, "POST", pathConversations, sprint(`{"sandbox_id":%q}`, sb)).want(t, 200)
	h.do(h.bob, "POST", pathSandboxes, "").want(t, 200)
	// A paused sandbox frees its place and can't be resumed once that is taken.
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	h.createSandbox(h.alice)
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/resume", "").refused(t, "user_running_sandboxes")
}

func TestLimit_StartsThatWaitForASandboxCount(t *testing.T) {
	h := newHarness(t).withSpec().limited(fsm.Installation{PerUser: fsm.Limits{Total: 2}})
	h.do(h.alice, "POST", pathConversations, `{}`).want(t, 200)
	h.do(h.alice, "POST", pathConversations, `{}`).want(t, 200)
	h.do(h.alice, "POST", pathConversations, `{}`).refused(t, "user_total_sandboxes")
	h.do(h.alice, "POST", pathSandboxes, "").refused(t, "user_total_sandboxes")
	h.do(h.bob, "POST", pathConversations, `{}`).want(t, 200)
}

func TestLimit_StartsPerMinuteSayHowLong(t *testing.T) {
	h := newHarness(t).withSpec().limited(fsm.Installation{Overall: fsm.Limits{StartsPerMinute: 1}})
	h.createSandbox(h.alice)
	res := h.do(h.bob, "POST", pathSandboxes, "")
	res.refused(t, "installation_starts_per_minute")
	if after := res.header.Get("Retry-After"); after != "60" && after != "59" {
		t.Fatalf("Retry-After %s", after)
	}
}

func TestLimit_PauseOldest(t *testing.T) {
	h := newHarness(t).withSpec().limited(fsm.Installation{
		PerUser: fsm.Limits{Running: 1},
		OnLimit: fsm.OnLimitPauseOldest,
	})
	first := h.createSandbox(h.alice)
	h.createSandbox(h.alice)
	if sb := h.cluster.store.View().SandboxAny(first); sb.Desired != fsm.DesiredPaused ||
		sb.PausedBy != fsm.PausedByLimit {
		t.Fatalf("the oldest is %s", sb.Desired)
	}
}

// A node that is behind neither refuses a start within the limits nor allows more.
func TestLimit_ANodeThatIsBehind(t *testing.T) {
	h := newHarness(t).withSpec().limited(fsm.Installation{PerUser: fsm.Limits{Running: 1}})
	sb := h.createSandbox(h.alice)
	full := h.cluster.store.View()
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	h.cluster.set(func(c *fakeCluster) { c.behind = full })
	h.createSandbox(h.alice)
	h.cluster.set(func(c *fakeCluster) { c.behind = nil })
	h.do(h.alice, "POST", pathSandboxes, "").refused(t, "user_running_sandboxes")
}

// warm creates a pool of the default spec with n running members.
func (h *harness) warm(n int) []string {
	h.t.Helper()
	spec := h.cluster.store.View().Specs()[0].ID
	h.apply("", &fsm.SpecPoolBody{ID: spec, Size: n})
	ids := make([]string, n)
	for i := range ids {
		ids[i] = apikey.Random(apikey.SandboxIDLen)
		key := apikey.Random(apikey.SandboxKeyLen)
		ref, err := h.secrets.Write(h.t.Context(), fsm.SandboxKeyPath(ids[i]),
			map[string]string{"key": key, "secret_key": "s" + ids[i]})
		if err != nil {
			h.t.Fatal(err)
		}
		h.apply("", &fsm.PoolAddBody{ID: ids[i], SpecID: spec, InitRef: ref, KeyRef: ref, KeyHash: apikey.Hash(key)})
		h.observe(ids[i], running())
	}
	return ids
}

func TestClaim_GivesAMemberWithTheKeyThatWasWritten(t *testing.T) {
	h := newHarness(t).withSpec()
	member := h.warm(1)[0]
	h.do(h.alice, "GET", pathSandboxes+"?id="+member, "").want(t, 200).is(t, `[null]`)
	// A claim works without the secret store.
	h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
	first := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	h.secrets.set(func(s *fakeSecrets) { s.err = nil })
	var sb struct {
		ID, Status string
		User       string `json:"created_by_user_id"`
	}
	first.json(t, &sb)
	if sb.ID != member || sb.Status != "STARTING" || sb.User != "alice" {
		t.Fatalf("%s", first.body)
	}
	row := h.cluster.store.View().Sandbox("alice", member)
	entry, err := h.secrets.Read(t.Context(), row.KeyRef)
	if err != nil || apikey.Hash(entry["key"]) != row.KeyHash || entry["secret_key"] == "" {
		t.Fatalf("the member's key is not what was written: %v", err)
	}
	again := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	if string(again.body) != string(first.body) {
		t.Fatalf("%s, then %s", first.body, again.body)
	}
	if cold := h.createSandbox(h.alice); cold == member {
		t.Fatal("one member was given twice")
	}
	// A repeated request is no second start, even if a member is free or a limit was reached
	// meanwhile.
	h.warm(1)
	h.limited(fsm.Installation{PerUser: fsm.Limits{Total: 1}})
	again = h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	if string(again.body) != string(first.body) {
		t.Fatalf("%s, then %s", first.body, again.body)
	}
	h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "other").refused(t, "user_total_sandboxes")
}

// A claim that is bound at once returns all that a client needs.
func TestClaim_AnswersOnceItRuns(t *testing.T) {
	h := newHarness(t).withSpec()
	for _, away := range []bool{false, true} {
		member := h.warm(1)[0]
		row := h.cluster.store.View().SandboxAny(member)
		entry, err := h.secrets.Read(t.Context(), row.WarmKeyRef)
		if err != nil {
			t.Fatal(err)
		}
		// The key is part of it.
		want, key := "RUNNING", entry["key"]
		if away {
			h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
			want, key = "STARTING", ""
		}
		var wg sync.WaitGroup
		wg.Go(func() { // the leader
			for {
				v := h.cluster.store.View()
				if sb := v.SandboxAny(member); !sb.Member() {
					h.observe(member, running())
					return
				}
				<-v.Changed()
			}
		})
		var sb struct {
			ID, Status string
			Key        string           `json:"session_api_key"`
			URLs       []map[string]any `json:"exposed_urls"`
		}
		h.do(h.alice, "POST", pathSandboxes, "").want(t, 200).json(t, &sb)
		wg.Wait()
		if sb.ID != member || sb.Status != want || sb.Key != key || (len(sb.URLs) > 0) == away {
			t.Errorf("secret store away: %v: %+v", away, sb)
		}
	}
}

func TestClaim_OneMemberAnOwner(t *testing.T) {
	h := newHarness(t).withSpec()
	members := h.warm(4)
	const starts = 12
	ids := make([]string, starts)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { ids[i] = h.createSandbox([]string{h.alice, h.bob}[i%2]) })
	}
	wg.Wait()
	got := map[string]int{}
	for _, id := range ids {
		got[id]++
	}
	for _, m := range members {
		if got[m] != 1 {
			t.Errorf("the member %s was given %d times", m, got[m])
		}
	}
	if len(got) != starts {
		t.Fatalf("%d sandboxes for %d starts", len(got), starts)
	}
}

// If the member is gone, or its template does not fit the user, a claim becomes a cold start
// instead of an error.
func TestClaim_FallsBackToAColdStart(t *testing.T) {
	h := newHarness(t).withSpec()
	member := h.warm(1)[0]
	old := h.cluster.store.View()
	h.apply("", &fsm.PoolDropBody{ID: member, Reason: "outdated"})
	h.cluster.set(func(c *fakeCluster) { c.behind = old })
	if id := h.createSandbox(h.alice); id == member {
		t.Fatal("a dropped member was given")
	}
	// Also with a repeated Idempotency-Key.
	first := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	again := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	if string(again.body) != string(first.body) {
		t.Fatalf("%s, then %s", first.body, again.body)
	}
}

func TestLimitBody_HasEveryShape(t *testing.T) {
	for s, want := range map[response.Format]string{
		response.FormatDetail: `{"detail":"x","limit":"user_cpu"}`,
		response.FormatError:  `{"detail":"x","limit":"user_cpu"}`,
		response.FormatStatus: `{"status":"error","message":"x","msg_id":"STATUS$ERROR","detail":"x","limit":"user_cpu"}`,
	} {
		b, err := json.Marshal(response.FailureOf(&fsm.Error{Code: fsm.CodeLimit, Message: "x", Limit: "user_cpu"}, s,
			"").Body)
		if err != nil || cmp.Diff(want, string(b)) != "" {
			t.Errorf("%s", b)
		}
	}
}

// A start for a paused sandbox that can't be resumed is refused at the POST too, before its secrets
// are stored.
func TestLimit_ANamedPausedSandboxIsAStart(t *testing.T) {
	h := newHarness(t).withSpec().limited(fsm.Installation{PerUser: fsm.Limits{Running: 1}})
	sb := h.createSandbox(h.alice)
	h.do(h.alice, "POST", pathSandboxes+"/"+sb+"/pause", "").want(t, 200)
	named := sprint(`{"sandbox_id":%q,"secrets":{"A":"b"}}`, sb)
	h.do(h.alice, "POST", pathConversations, `{}`).want(t, 200)
	stored := h.secrets.paths()
	h.do(h.alice, "POST", pathConversations, named).refused(t, "user_running_sandboxes")
	if got := h.secrets.paths(); cmp.Diff(stored, got) != "" {
		t.Fatalf("secrets are left: %v, before %v", got, stored)
	}
	h.limited(fsm.Installation{PerUser: fsm.Limits{Running: 2}})
	h.do(h.alice, "POST", pathConversations, named).want(t, 200)
	if row := h.cluster.store.View().SandboxAny(sb); row.Desired != fsm.DesiredRunning {
		t.Fatalf("the sandbox is %s", row.Desired)
	}
}

// On a node that is behind, Apply refuses a burst, and the secrets written for it are deleted at
// once.
func TestLimit_RefusedByApplyLeavesNoSecrets(t *testing.T) {
	h := newHarness(t).withSpec().limited(fsm.Installation{PerUser: fsm.Limits{Running: 1}})
	empty := h.cluster.store.View()
	h.createSandbox(h.alice)
	stored := h.secrets.paths()
	h.cluster.set(func(c *fakeCluster) { c.behind = empty })
	h.do(h.alice, "POST", pathSandboxes, "").refused(t, "user_running_sandboxes")
	h.do(h.alice, "POST", pathConversations, `{"secrets":{"A":"b"}}`).refused(t, "user_running_sandboxes")
	h.server.calls.Wait()
	if got := h.secrets.paths(); cmp.Diff(stored, got) != "" {
		t.Fatalf("secrets are left: %v, before %v", got, stored)
	}
}

// When a claim makes a cold start unnecessary, its key is deleted at once; the member's stays.
func TestClaim_LeavesNoKeyBehind(t *testing.T) {
	h := newHarness(t).withSpec()
	member := h.warm(1)[0]
	h.createSandbox(h.alice)
	h.server.calls.Wait()
	if got := h.secrets.paths(); cmp.Diff([]string{fsm.SandboxKeyPath(member)}, got) != "" {
		t.Fatalf("there are secrets at %v", got)
	}
}
