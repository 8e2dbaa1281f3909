package e2e

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// signIn opens a session of the browser with an API key, on the node's own sign-in page.
func (w *webPage) signIn(t *testing.T, key string) {
	t.Helper()
	w.show(t, "/login")
	w.does(t, "the form of /login is there", `(() => {
		const form = document.getElementById("form")
		if (!form || form.hidden) return false
		document.getElementById("key").value = `+fmt.Sprintf("%q", key)+`
		document.getElementById("enter").click()
		return true
	})()`)
	w.does(t, "the browser is signed in", `location.pathname !== "/login"`)
	w.settled(t, "the first page")
}

// does waits until an expression is true.
func (w *webPage) does(t *testing.T, what, expression string) {
	t.Helper()
	testcluster.Eventually(t, what, func() error {
		var is bool
		if err := w.eval(expression, &is); err != nil {
			return err
		}
		if !is {
			var text string
			_ = w.eval("location.href + ' ' + document.body.innerText", &text) // for the message only
			return fmt.Errorf("it is %.600s", text)
		}
		return nil
	})
}

// say types a message and sends it.
func (w *webPage) say(t *testing.T, text string) {
	t.Helper()
	w.does(t, "there is a field for a message", `(() => {
		const field = document.querySelector('[data-testid="chat-input"]')
		if (field) field.focus()
		return !!field
	})()`)
	if err := w.browser.call(w.session, "Input.insertText", map[string]any{"text": text}, nil); err != nil {
		t.Fatal(err)
	}
	w.does(t, "the message can be sent", `(() => {
		const button = document.querySelector('[data-testid="submit-button"]')
		if (!button || button.disabled) return false
		button.click()
		return true
	})()`)
}

// shows waits until the page's text has all of want.
func (w *webPage) shows(t *testing.T, want ...string) {
	t.Helper()
	testcluster.Eventually(t, fmt.Sprintf("the page shows %q", want), func() error {
		var text string
		if err := w.eval("document.body.innerText", &text); err != nil {
			return err
		}
		for _, one := range want {
			if !strings.Contains(text, one) {
				return fmt.Errorf("no %q in %.1500s", one, text)
			}
		}
		return nil
	})
}

// wide gives the tab the size of a window on a desktop.
func (w *webPage) wide(t *testing.T) {
	t.Helper()
	size := map[string]any{"width": 1100, "height": 680, "deviceScaleFactor": 1, "mobile": false}
	if err := w.browser.call(w.session, "Emulation.setDeviceMetricsOverride", size, nil); err != nil {
		t.Fatal(err)
	}
}

// picture writes what the tab shows to $BIVOUAC_PICTURES, if that is set.
func (w *webPage) picture(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv("BIVOUAC_PICTURES")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	if err := w.browser.call(w.session, "Page.captureScreenshot", map[string]any{"format": "png"}, &shot); err != nil {
		t.Fatal(err)
	}
	b, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestPage_AnswersAPerson: a person signs in on the page of a node, starts a conversation and reads
// the model's answer, and what a tool did, after a reload too. Nothing leaves the node.
func TestPage_AnswersAPerson(t *testing.T) {
	browser := startChromium(t)
	dev, _, info := startedPage(t)
	model := modeltest.New(t, &modeltest.Script{Stories: []*modeltest.Story{
		{When: modeltest.When{Tool: "-"}, Answers: []modeltest.Answer{modeltest.Text("A greeting")}},
		{When: modeltest.When{User: "greet", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "echo the tool has run"})),
			modeltest.Text("Hello from the scripted model."),
		}},
		{Answers: []modeltest.Answer{modeltest.Text("Hello again.")}},
	}})
	api := testcluster.Client{Base: info.Nodes[0].HTTP, Key: info.APIKey}
	api.Sure(t, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_api_key": "sk-page", "llm_base_url": model.BaseURL()}, nil)
	w := browser.watch(t, info.Nodes[0].HTTP)
	w.wide(t)
	w.signIn(t, info.APIKey)
	w.say(t, "Please greet me")
	w.does(t, "the conversation is open", `/^\/conversations\/./.test(location.pathname)`)
	w.shows(t, "Please greet me", "Hello from the scripted model.")
	w.say(t, "And once more")
	w.shows(t, "Hello again.")
	var at string
	if err := w.eval("location.pathname", &at); err != nil {
		t.Fatal(err)
	}
	w.show(t, at)
	w.shows(t, "Please greet me", "echo the tool has run", "Hello from the scripted model.", "Hello again.")
	w.picture(t, "conversation")
	refused := map[string]bool{}
	for _, one := range w.refused(t) {
		refused[violation(one)] = true
	}
	judgePage(t, w, slices.Sorted(maps.Keys(refused)))
	if len(model.Requests()) == 0 {
		t.Error("the model was not asked")
	}
	dev.interrupt(t)
}
