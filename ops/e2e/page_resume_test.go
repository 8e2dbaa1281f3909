package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// idleTimeout is short, and longer than nodes take to store that a sandbox was used.
const idleTimeout = 12 * time.Second

// sums adds series of all nodes.
func sums(t *testing.T, info devInfo, series ...string) (n []float64) {
	t.Helper()
	n = make([]float64, len(series))
	for _, node := range info.Nodes {
		m, err := testcluster.Client{Base: node.HTTP, Key: info.APIKey}.Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, one := range series {
			n[i] += m[one]
		}
	}
	return n
}

// press presses the mouse on the first element of a selector, as a person does.
func (w *webPage) press(t *testing.T, selector string) {
	t.Helper()
	var at struct{ X, Y float64 }
	err := w.eval(fmt.Sprintf(`(() => {
		const box = document.querySelector(%q).getBoundingClientRect()
		return { X: box.x + box.width / 2, Y: box.y + box.height / 2 }
	})()`, selector), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		if err == nil {
			err = w.browser.call(w.session, "Input.dispatchMouseEvent", map[string]any{
				"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPage_OpenTabEndsNoPause: a tab that is left open over three idle time-outs is one pause and no
// start, so is a reload; the button that the page then shows starts the sandbox.
func TestPage_OpenTabEndsNoPause(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	browser := startChromium(t)
	dev, _, info := startedPage(t)
	model := modeltest.New(t, &modeltest.Script{Stories: []*modeltest.Story{
		{Answers: []modeltest.Answer{modeltest.Text("Hello from the scripted model.")}},
	}})
	api := testcluster.Client{Base: info.Nodes[0].HTTP, Key: info.APIKey}
	api.Sure(t, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_api_key": "sk-page", "llm_base_url": model.BaseURL()}, nil)
	w := browser.watch(t, info.Nodes[0].HTTP)
	w.signIn(t, info.APIKey)
	w.say(t, "Please greet me")
	w.shows(t, "Please greet me", "Hello from the scripted model.")
	w.press(t, `[data-testid="chat-input"]`)

	var me struct{ ID string }
	api.Sure(t, http.MethodGet, "/api/v1/users/me", nil, &me)
	api.Sure(t, http.MethodPut, "/api/v1/operator/users/"+me.ID, map[string]any{
		"policy": map[string]any{"idle_timeout": idleTimeout.String()}}, nil)
	const (
		pauses = `bivouac_sandboxes_expired_total{action="pause",reason="idle"}`
		starts = `bivouac_sandbox_start_duration_seconds_count{stage="accepted",start="resume"}`
		asked  = "POST /api/v1/sandboxes/ID/resume"
	)
	var id string
	testcluster.Eventually(t, "the sandbox is paused, and the page has asked to resume it", func() error {
		var list struct{ Items []testcluster.Sandbox }
		if err := api.Get("/api/v1/sandboxes/search", &list); err != nil {
			return err
		}
		if err := w.eval("1", new(int)); err != nil { // takes what the browser tells
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Status != "PAUSED" || w.answers["409 "+asked] == 0 {
			return fmt.Errorf("%+v, %v", list.Items, w.answers)
		}
		id = list.Items[0].ID
		return nil
	})
	w.picture(t, "paused")
	rests := func(what string) {
		t.Helper()
		begin, sockets := time.Now(), w.sockets
		err := testcluster.Poll(4*idleTimeout+testcluster.Patience, time.Second, func() error {
			if err := w.eval("1", new(int)); err != nil {
				return err
			}
			if n := sums(t, info, pauses, starts); n[0] != 1 || n[1] != 0 {
				t.Fatalf("%s: %v pauses, %v starts after %s", what, n[0], n[1], time.Since(begin))
			}
			if past := time.Since(begin); past < 3*idleTimeout {
				return fmt.Errorf("%s have passed", past)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := w.answers["409 "+asked]; n > 2 || w.answers["200 "+asked] > 0 {
			t.Errorf("%s: the page asked %d times in vain, and %d times not", what, n, w.answers["200 "+asked])
		}
		t.Logf("%s: %d sockets in %s", what, w.sockets-sockets, time.Since(begin).Round(time.Second))
	}
	rests("a tab that is open")
	w.show(t, at(t, w))
	rests("a reload")
	w.picture(t, "paused-reloaded")
	w.press(t, "#bivouac-resume")
	api.AwaitSandbox(t, id, "RUNNING")
	w.shows(t, "Please greet me", "Hello from the scripted model.")
	w.picture(t, "resumed")
	if n := sums(t, info, starts); n[0] != 1 {
		t.Errorf("%v starts after a press", n[0])
	}
	for answer := range w.answers {
		if strings.HasPrefix(answer, "429 ") {
			t.Errorf("a limit was used up: %s", answer)
		}
	}
	refused := map[string]bool{}
	for _, one := range w.refused(t) {
		refused[violation(one)] = true
	}
	judgePage(t, w, slices.Sorted(maps.Keys(refused)))
	dev.interrupt(t)
}

// at is the path of the page that is open.
func at(t *testing.T, w *webPage) (path string) {
	t.Helper()
	if err := w.eval("location.pathname", &path); err != nil {
		t.Fatal(err)
	}
	return path
}
