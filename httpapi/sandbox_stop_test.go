package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// TestSession_StopsRunsAtOnce: a page's Stop ends goals, interrupts what runs and leaves the job for a while, in which
// the sandbox is PAUSED and a resume starts nothing. A key's pause stops the job now.
func TestSession_StopsRunsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	b.signIn(`{"key":"` + b.alice + `"}`)
	id := b.createSandbox(b.alice)
	b.observe(id, running())
	runs, ended := uuid.NewString(), uuid.NewString()
	var told []string
	var mu sync.Mutex
	b.agents.call = func(_ context.Context, _, key string, q AgentRequest) ([]byte, error) {
		if key != b.secrets.last(fsm.SandboxKeyPath(id))["key"] {
			t.Errorf("%s with the key %q", q.Path, key)
		}
		if strings.HasPrefix(q.Path, "/api/conversations/search?") {
			return fmt.Appendf(nil, `{"items":[{"id":%q,"execution_status":"running"},
					{"id":%q,"execution_status":"finished"},{"id":"../x","execution_status":"running"}]}`, runs, ended), nil
		}
		mu.Lock()
		defer mu.Unlock()
		told = append(told, q.Method+" "+q.Path)
		return []byte(`{"success":true}`), nil
	}
	row := func() *fsm.Sandbox {
		v, err := b.cluster.View(t.Context(), cluster.Stale)
		if err != nil {
			t.Fatal(err)
		}
		return v.SandboxAny(id)
	}
	b.do(b.alice, "POST", pathSandboxes+"/"+id+"/pause", "").want(t, http.StatusOK)
	if at := row().StopAt; len(told) > 0 || !at.IsZero() {
		t.Errorf("a key's pause called %q, and leaves the job until %v", told, at)
	}
	b.do(b.alice, "POST", pathSandboxes+"/"+id+"/resume", "").want(t, http.StatusOK)
	b.observe(id, running())
	b.ask("POST", pathSandboxes+"/"+id+"/pause", "").want(t, http.StatusOK)
	want := []string{"POST /api/conversations/" + runs + "/goal/stop", "POST /api/conversations/" + ended + "/goal/stop",
		"POST /api/conversations/" + runs + "/interrupt"}
	if len(told) == len(want) {
		slices.Sort(told[:2])
		slices.Sort(want[:2])
	}
	if !slices.Equal(told, want) {
		t.Errorf("the agent server was called with %q, want %q", told, want)
	}
	sb := row()
	if got := sb.StopAt.Sub(sb.DesiredAt); got != stopAfter || sb.State() != fsm.SandboxPaused ||
		sb.Status.State != fsm.SandboxRunning {
		t.Errorf("the job goes on for %v, the sandbox is %s", got, sb.State())
	}
	b.ask("POST", pathSandboxes+"/"+id+"/pause", "").want(t, http.StatusOK)
	if again := row(); len(told) != len(want) || !again.StopAt.Equal(sb.StopAt) {
		t.Errorf("a second Stop called %q, and leaves the job until %v, not %v", told, again.StopAt, sb.StopAt)
	}
	b.do(b.alice, "POST", pathSandboxes+"/"+id+"/pause", "").want(t, http.StatusOK)
	if again := row(); !again.StopAt.Before(sb.StopAt) || again.Generation != sb.Generation {
		t.Errorf("a key's pause leaves the job until %v", again.StopAt)
	}
	b.do(b.alice, "POST", pathSandboxes+"/"+id+"/resume", "").want(t, http.StatusOK)
	if at := row().StopAt; !at.IsZero() {
		t.Errorf("a resumed sandbox has the time %v", at)
	}
}
