package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

const pathConfig = pathOperator + "/config"

// config reads the configuration.
func (h *harness) config() wire.Config {
	h.t.Helper()
	var b wire.Config
	h.do(h.root, http.MethodGet, pathConfig, "").want(h.t, 200).json(h.t, &b)
	return b
}

// newest raises the protocol version.
func (h *harness) newest() *harness {
	h.t.Helper()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	return h
}

func TestConfig_IsReplacedAndLoggedWithTheKey(t *testing.T) {
	h := newHarness(t).newest()
	h.apply("",
		&fsm.InstallationConfigureBody{
			Seed:         true,
			Installation: fsm.Installation{PerUser: fsm.Limits{Running: 20}, Git: fsm.Git{Unverified: true}},
		})
	was := h.config()
	if was.Index == 0 || was.Limits.User.Running != 20 || was.Git.VerifyTokens || was.Limits.OnLimit != "refuse" ||
		was.CORS.Origins == nil {
		t.Fatalf("%+v", was)
	}
	put := `{"policy":{"idle_timeout":"1h"},"limits":{"user":{"running_sandboxes":3},"on_limit":"pause_oldest"},` +
		`"cors":{"origins":["https://app.example.org"]}}`
	var now wire.Config
	h.do(h.root, http.MethodPut, pathConfig+fmt.Sprintf("?cas=%d", was.Index), put).want(t, 200).json(t, &now)
	if now.Index <= was.Index || *now.Policy.IdleTimeout != "1h0m0s" || now.Limits.User.Running != 3 ||
		!now.Git.VerifyTokens || now.CORS.Origins[0] != "https://app.example.org" {
		t.Fatalf("%+v", now)
	}
	root := h.cluster.store.View().APIKeys()[0]
	line := fmt.Sprintf(
		`"msg":"cluster configuration set","act":"config.set","key":%d,"operator":"root",`+
			`"index":%d,"settings":"policy.idle_timeout = 1h0m0s (was never), limits.user.running_sandboxes = 3 (was 20), `+
			`limits.on_limit = pause_oldest (was refuse), git.verify_tokens = true (was false), `+
			`cors.origins = [https://app.example.org] (was [])"`,
		root.ID,
		now.Index,
	)
	if !strings.Contains(h.logs.String(), line) {
		t.Errorf("no line %s in\n%s", line, h.logs.String())
	}
	// A stale index is refused with the one in force, and nothing changes.
	res := h.do(h.root, http.MethodPut, pathConfig+fmt.Sprintf("?cas=%d", was.Index), `{}`).want(t, 409)
	if text := string(res.body); !strings.Contains(text, fmt.Sprintf("index is %d, not %d", now.Index, was.Index)) {
		t.Error(text)
	}
	if again := h.config(); again.Index != now.Index {
		t.Errorf("%+v", again)
	}
	for body, status := range map[string]int{
		`{"cors":{"origins":["nonsense"]}}`: 422, `{"git":{"allowed_hosts":["a/b"]}}`: 422,
		`{"limits":{"user":{"running_sandboxes":-1}}}`: 422,
		`{"policy":{"idle_timeout":"soon"}}`:           422, `{"limits":{"body_size":1}}`: 422, `{"colour":"red"}`: 422,
	} {
		h.do(h.root, http.MethodPut, pathConfig, body).want(t, status)
	}
	h.do(h.root, http.MethodPut, pathConfig+"?cas=-1", `{}`).want(t, 422)
	h.do(h.alice, http.MethodPut, pathConfig, `{}`).want(t, 403)
	h.do(h.alice, http.MethodGet, pathConfig, "").want(t, 403)
}

// Two operators with the index that both have read: one of each pair wins, and each write that was
// accepted was made on what its writer had read.
func TestConfig_OfTwoOperatorsOneWins(t *testing.T) {
	h := newHarness(t).newest()
	h.apply("", &fsm.InstallationConfigureBody{Seed: true})
	for round := range 20 {
		at := h.config().Index
		var won atomic.Int32
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				body := fmt.Sprintf(`{"limits":{"user":{"running_sandboxes":%d}}}`,
					10*round+i+1) // what is in force already is no change
				switch status := h.do(h.root, http.MethodPut, pathConfig+fmt.Sprintf("?cas=%d", at), body).status; status {
				case 200:
					won.Add(1)
				case 409:
				default:
					t.Errorf("status %d", status)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of two writes on one index were accepted", won.Load())
		}
	}
}

// Below the version nodes work by their own files, above it by the cluster's configuration.
func TestConfig_OriginsAreTheClusters(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.CORSOrigins = []string{"https://file.example"} })
	allowed := func(origin string) bool {
		return h.do(h.alice, http.MethodGet, "/api/settings", "", "Origin",
			origin).header.Get("Access-Control-Allow-Origin") == origin
	}
	if !allowed("https://file.example") || allowed("https://cluster.example") {
		t.Error("the node's own origins do not count in an older cluster")
	}
	if res := h.do(h.root, http.MethodPut, pathConfig,
		`{"cors":{"origins":["https://cluster.example"]}}`); res.status != http.StatusConflict ||
		!strings.Contains(string(res.body), "needs protocol version 7") {
		t.Errorf("%d %s", res.status, res.body)
	}
	h.do(h.root, http.MethodPut, pathConfig, `{"limits":{"user":{"running_sandboxes":5}}}`).want(t, 200)
	h.newest()
	h.apply("",
		&fsm.InstallationConfigureBody{
			Seed:         true,
			Installation: fsm.Installation{CORS: fsm.CORS{Origins: []string{"https://cluster.example"}}},
		})
	if got := h.config(); got.Limits.User.Running != 5 {
		t.Errorf("%+v", got)
	}
	if allowed("https://file.example") || !allowed("https://cluster.example") {
		t.Error("the node's own origins count although the cluster has others")
	}
}
