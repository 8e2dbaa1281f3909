package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// chromium is a headless browser that a test drives through its DevTools. It is for one goroutine.
type chromium struct {
	conn *websocket.Conn
	last int
	// event is called for what the browser tells by itself, while a call waits; nil for nothing.
	event func(session, method string, params json.RawMessage)
}

// startChromium starts a browser with a new profile. It ends with the test.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	path, err := exec.LookPath("chromium")
	testcluster.Need(t, "chromium", err == nil)
	profile, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-popup-blocking",
		"--no-proxy-server",
		"--remote-debugging-port=0", "--user-data-dir="+profile, "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
		_ = os.RemoveAll(profile) // a child that is just ending may still write
	})
	var port, at string
	testcluster.Eventually(t, "the browser listens", func() error {
		b, err := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		if err != nil {
			return err
		}
		var whole bool
		if port, at, whole = strings.Cut(strings.TrimSpace(string(b)), "\n"); !whole {
			return errors.New("its file is not whole yet")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://127.0.0.1:"+port+at, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &chromium{conn: conn}
}

// call sends a command of the DevTools protocol, to the browser or to a tab's session.
func (c *chromium) call(session, method string, params map[string]any, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	asked, err := c.send(ctx, session, method, params)
	if err != nil {
		return err
	}
	for {
		_, b, err := c.conn.Read(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		var in struct {
			ID                int
			Method, SessionID string
			Params, Result    json.RawMessage
			Error             *struct{ Message string }
		}
		if err := json.Unmarshal(b, &in); err != nil {
			return err
		}
		switch {
		case in.ID == 0:
			if c.event != nil {
				c.event(in.SessionID, in.Method, in.Params)
			}
		case in.ID != asked: // of a command whose answer nobody waited for
		case in.Error != nil:
			return fmt.Errorf("%s: %s", method, in.Error.Message)
		case out != nil:
			return json.Unmarshal(in.Result, out)
		default:
			return nil
		}
	}
}

// send sends a command without waiting for its answer, and returns its number.
func (c *chromium) send(ctx context.Context, session, method string, params map[string]any) (int, error) {
	c.last++
	command := map[string]any{"id": c.last, "method": method, "params": params}
	if session != "" {
		command["sessionId"] = session
	}
	b, err := json.Marshal(command)
	if err != nil {
		return 0, err
	}
	return c.last, c.conn.Write(ctx, websocket.MessageText, b)
}

// tab is one tab of the browser.
type tab struct {
	browser *chromium
	session string
}

// open opens a tab and waits until the page that the URL leads to has defined ready.
func (c *chromium) open(t *testing.T, url, ready string) *tab {
	t.Helper()
	var made struct{ TargetID string }
	var attached struct{ SessionID string }
	err := c.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	if err == nil {
		err = c.call("", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &attached)
	}
	if err == nil {
		err = c.call(attached.SessionID, "Page.navigate", map[string]any{"url": url}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &tab{browser: c, session: attached.SessionID}
	testcluster.Eventually(t, "the page at "+url+" is there", func() error {
		var is bool
		if err := p.eval("typeof "+ready+" === 'function'", &is); err != nil {
			return err
		}
		if !is {
			var text string
			_ = p.eval("location.href + ' ' + document.documentElement.innerText", &text) // for the message only
			return fmt.Errorf("it is %.300s", text)
		}
		return nil
	})
	return p
}

// eval evaluates an expression in the tab's page, waits for it if it is a promise, and decodes it.
func (p *tab) eval(expression string, out any) error {
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := p.browser.call(p.session, "Runtime.evaluate", map[string]any{
		"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &got)
	switch {
	case err != nil:
		return err
	case got.ExceptionDetails != nil:
		return fmt.Errorf("%s %s", got.ExceptionDetails.Text, got.ExceptionDetails.Exception.Description)
	}
	return json.Unmarshal(got.Result.Value, out)
}
