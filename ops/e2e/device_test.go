package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestPage_AllowsATerminal: `bivouac login` at a terminal prints an address and a code. The web page asks
// the person by the terminal's name and address, and the terminal has a key of its own.
func TestPage_AllowsATerminal(t *testing.T) {
	browser := startChromium(t)
	_, home, info := startedPage(t)
	w := browser.watch(t, info.Nodes[0].HTTP)
	w.signIn(t, info.APIKey)

	cmd := exec.CommandContext(t.Context(), filepath.Join(home, "bin", "bivouac"), "login")
	cmd.Env = []string{"HOME=" + home, "TERM=xterm", "BIVOUAC_ADDR=" + info.Nodes[1].HTTP + "," + info.Nodes[2].HTTP}
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	shown := make(chan string)
	go func() { // reading fails when the program ends
		var all strings.Builder
		b, told := make([]byte, 4096), false
		for n, err := tty.Read(b); err == nil; n, err = tty.Read(b) {
			all.Write(b[:n])
			if !told && strings.Contains(all.String(), "The code is") {
				told = true
				shown <- all.String()
			}
		}
		shown <- all.String()
	}()
	said := func() string {
		select {
		case text := <-shown:
			return text
		case <-time.After(testcluster.Patience):
			t.Fatal("the terminal says nothing more")
			return ""
		}
	}
	text := said()
	parts := regexp.MustCompile(`/oauth/device/verify\?user_code=(\w{4}-\w{4})`).FindStringSubmatch(text)
	if parts == nil || !strings.Contains(text, "The code is "+parts[1]) {
		t.Fatalf("the terminal shows %q", text)
	}
	dialog := answerDialogs(browser, false)
	w.show(t, parts[0])
	press := `(() => {
		const button = [...document.querySelectorAll("button")].find((b) => b.className.includes("bg-blue-600"))
		if (button) button.click()
		return !!button
	})()`
	w.does(t, "the page has a button to allow the terminal", press)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	w.does(t, "the page shows that nothing was allowed", `!!document.querySelector(".text-red-600")`)
	if said := dialog(); !strings.Contains(said, "bivouac on "+host) || !strings.Contains(said, "127.0.0.1") {
		t.Errorf("the page asks %q", said)
	}
	answerDialogs(browser, true)
	w.show(t, parts[0])
	w.does(t, "the page has a button to allow the terminal", press)
	w.does(t, "the page shows that the terminal was allowed", `!!document.querySelector(".text-green-600")`)
	text = said()
	if err := cmd.Wait(); err != nil || !strings.Contains(text, "logged in to") {
		t.Fatalf("%v: %s", err, text)
	}
	var kept struct {
		APIKey string `json:"api_key"`
	}
	raw, err := os.ReadFile(filepath.Join(home, ".config", "bivouac", "login.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &kept); err != nil || kept.APIKey == info.APIKey {
		t.Fatalf("%v: the terminal has the browser's own key", err)
	}
	var key struct{ Name string }
	terminal := testcluster.Client{Base: info.Nodes[0].HTTP, Key: kept.APIKey}
	if err := terminal.Get("/api/keys/current", &key); err != nil || key.Name != "bivouac on "+host {
		t.Errorf("%v: the key is %q", err, key.Name)
	}
}

// answerDialogs answers every dialog of the browser's pages, and returns what the last one said.
func answerDialogs(browser *chromium, accept bool) (last func() string) {
	said, before := "", browser.event
	browser.event = func(session, method string, params json.RawMessage) {
		if method != "Page.javascriptDialogOpening" {
			before(session, method, params)
			return
		}
		var dialog struct{ Message string }
		_ = json.Unmarshal(params, &dialog) // then it says nothing
		said = dialog.Message
		_, _ = browser.send(context.Background(), session, "Page.handleJavaScriptDialog", map[string]any{"accept": accept})
	}
	return func() string { return said }
}
