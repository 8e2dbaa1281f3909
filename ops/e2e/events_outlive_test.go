package e2e

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestWork_EventsOutliveTheSandbox: the built-in agent calls tools, and its sandbox and workspace are
// deleted. Every node reads all events of the conversation in their order, by each way to read them; so
// do the others while one is killed, each in turn, and that one when it is back.
func TestWork_EventsOutliveTheSandbox(t *testing.T) {
	w := startWork(t, os.Getenv("PATH"), workScript())
	f := w.f
	w.start(nil)
	for range 3 {
		w.say("make a note")
		w.becomes("finished")
	}
	said := w.events()
	w.losesItsSandbox()

	all := w.stored(f.Nodes[0])
	if err := all.follow(said); err != nil {
		t.Fatal(err)
	}
	same := func(n *testcluster.Node, when string) {
		t.Helper()
		if got := w.stored(n); !all.equal(got) {
			t.Errorf("%s: %s has %d events, %s has %d, or other ones", when, n.Name, len(got), f.Nodes[0].Name, len(all))
		}
	}
	for _, n := range f.Nodes {
		same(n, "with all nodes")
	}
	for _, dead := range f.Nodes {
		dead.Kill()
		for _, n := range f.Nodes {
			if n != dead {
				same(n, "without "+dead.Name)
			}
		}
		f.Restart(t)
		same(dead, "restarted")
	}
	t.Logf("--- verdict: %d events without a sandbox, the same on each node, with each of them killed in turn", len(all))
}

// losesItsSandbox deletes the sandbox and waits until its workspace is gone.
func (w *work) losesItsSandbox() {
	w.t.Helper()
	dir, err := w.AwaitSandbox(w.t, w.sandbox, "RUNNING").WorkspaceDir()
	if err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.Change(w.t, w.sandbox, "delete")
	testcluster.Eventually(w.t, "sandbox and workspace are gone", func() error {
		_, missing := w.Sandbox(w.sandbox)
		_, err := os.Stat(dir)
		if !errors.Is(missing, testcluster.ErrGone) || !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("sandbox: %v, %s: %v", missing, dir, err) //nolint:errorlint // both may be nil
		}
		return nil
	})
}

// readEvents are events as a node answers them, in their order.
type readEvents []json.RawMessage

// equal reports whether both are the same bytes.
func (e readEvents) equal(o readEvents) bool {
	return slices.EqualFunc(e, o, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// follow checks that they begin with the events that the agent server had, among them tool calls and
// their results.
func (e readEvents) follow(said []storedEvent) error {
	kinds := map[string]int{}
	for i, raw := range e {
		var got storedEvent
		if err := json.Unmarshal(raw, &got); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		kinds[got.Kind]++
		if i < len(said) && got != said[i] {
			return fmt.Errorf("event %d is %+v, the agent server had %+v", i, got, said[i])
		}
	}
	if len(e) < len(said) || kinds["ActionEvent"] != 3 || kinds["ObservationEvent"] != 3 {
		return fmt.Errorf("%d events of the agent server's %d, by kind %v", len(e), len(said), kinds)
	}
	return nil
}

// stored reads the conversation's events from a node, page by page, and checks that the other ways to
// read them show the same.
func (w *work) stored(n *testcluster.Node) (all readEvents) {
	w.t.Helper()
	c := testcluster.Client{Base: n.Base, Key: w.Key}
	at := "/api/v1/conversation/" + w.conversation + "/events"
	testcluster.Eventually(w.t, "events from "+n.Name, func() error {
		all = nil
		for next := ""; ; {
			var page struct {
				Items []json.RawMessage
				Next  *string `json:"next_page_id"`
			}
			if err := c.Get(at+"/search?limit=4&page_id="+url.QueryEscape(next), &page); err != nil {
				return err
			}
			all = append(all, page.Items...)
			if page.Next == nil {
				break
			}
			next = *page.Next
		}
		return w.agrees(c, at, all)
	})
	return all
}

// agrees checks the count, a batch, one event and the archive of a conversation against its events.
func (w *work) agrees(c testcluster.Client, at string, all readEvents) error {
	if len(all) < 10 {
		return fmt.Errorf("only %d events: %s", len(all), all)
	}
	var count int
	if err := c.Get(at+"/count", &count); err != nil || count != len(all) {
		return errors.Join(err, fmt.Errorf("the count is %d, pages have %d", count, len(all)))
	}
	var ids []string
	for _, raw := range all {
		var e storedEvent
		if err := json.Unmarshal(raw, &e); err != nil {
			return err
		}
		ids = append(ids, e.ID)
	}
	ask := ids[:min(len(ids), 100)]
	var batch readEvents
	if err := c.Get(at+"?id="+strings.Join(ask, "&id="), &batch); err != nil || !batch.equal(all[:len(ask)]) {
		return errors.Join(err, fmt.Errorf("a batch of %d has %d, or other ones", len(ask), len(batch)))
	}
	var one json.RawMessage
	last := len(all) - 1
	if err := c.Get(at+"/"+ids[last], &one); err != nil || !bytes.Equal(one, all[last]) {
		return errors.Join(err, fmt.Errorf("event %s alone is %s", ids[last], one))
	}
	a, err := c.Try(http.MethodGet, "/api/v1/app-conversations/"+w.conversation+"/download", nil)
	if err != nil || a.Status != http.StatusOK {
		return errors.Join(err, fmt.Errorf("the download: %s", a))
	}
	archive, err := zip.NewReader(bytes.NewReader(a.Body), int64(len(a.Body)))
	if err != nil {
		return err
	}
	if names := archivedIDs(archive); !slices.Equal(names, ids) {
		return fmt.Errorf("the archive has %v, want %v", names, ids)
	}
	return nil
}

// archivedIDs are the ids in the names of an archive's events.
func archivedIDs(archive *zip.Reader) (ids []string) {
	for _, file := range archive.File {
		if name, found := strings.CutPrefix(path.Base(file.Name), "event_"); found {
			_, id, _ := strings.Cut(strings.TrimSuffix(name, ".json"), "_")
			ids = append(ids, id)
		}
	}
	return ids
}
