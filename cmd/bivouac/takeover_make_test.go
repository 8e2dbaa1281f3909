package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
)

// takeoverFacts is what must be found in a kept data directory after an upgrade.
type takeoverFacts struct {
	// Key is the operator's API key.
	Key string `json:"key"`
	// Version is the nodes' protocol version.
	Version int `json:"version"`
	// Settings is the response of GET /api/settings.
	Settings string `json:"settings"`
	// Paused is a sandbox whose workspace has kept.txt with the text "kept\n".
	Paused string `json:"paused"`
	// Conversation runs in Sandbox.
	Conversation string `json:"conversation"`
	Sandbox      string `json:"sandbox"`
	// Keys are the names of the API keys, Specs the ids of the specs.
	Keys  []string `json:"keys"`
	Specs []string `json:"specs"`
}

// TestTakeover_Make writes the data directories for TestTakeover_* to the folder in
// BIVOUAC_TEST_MAKE_DATA, in the format of the program that it is built with. Run it once for a
// release. Its files are never rewritten.
func TestTakeover_Make(t *testing.T) {
	into := os.Getenv("BIVOUAC_TEST_MAKE_DATA")
	if into == "" {
		t.Skip("BIVOUAC_TEST_MAKE_DATA names no folder")
	}
	dir := t.TempDir()
	facts := fill(t, startDevOn(t, dir))
	for _, name := range []string{"n1", "n2", "n3"} {
		if found, _ := filepath.Glob(filepath.Join(dir, name, "snapshots", "*", "*")); len(found) == 0 {
			t.Errorf("%s has no snapshot", name)
		}
	}
	for _, name := range []string{"tls", "secrets", "sandboxes", "logs", "dev.json", "peers.json", "api-key", "lock"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	pack(t, dir, facts, filepath.Join(into, "server-wal.tar.gz"))
	t.Run("dev", func(t *testing.T) {
		dir := t.TempDir()
		facts := fill(t, startDev(t, dir))
		if err := os.RemoveAll(filepath.Join(dir, "logs")); err != nil {
			t.Fatal(err)
		}
		pack(t, dir, facts, filepath.Join(into, "dev.tar.gz"))
	})
}

// startDevOn is startDev with the short snapshots of serverConfig.
func startDevOn(t *testing.T, dir string) *running {
	t.Helper()
	c := &devCluster{layout: devLayout{dir}, life: newLifecycle()}
	var err error
	if c.specs, err = parseDevSpecs(); err != nil {
		t.Fatal(err)
	}
	if err := c.openShared(devOptions{nodes: 3, logLevel: "debug"}); err != nil {
		t.Fatal(err)
	}
	names := nodeNames(3)
	if err := c.layout.makeCertificates(names); err != nil {
		t.Fatal(err)
	}
	web, err := listenHTTP(0, 3)
	if err != nil {
		t.Fatal(err)
	}
	peers, err := c.layout.listenPeers(names)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		c.nodes = append(c.nodes, &devNode{name: name, http: web[i].Addr().String(), peer: peers[i].Addr().String()})
	}
	for i, n := range c.nodes {
		cl := cluster.DefaultConfig()
		cl.NodeName, cl.DataDir, cl.Listener = n.name, c.layout.node(n.name), peers[i]
		cl.PeerAddress, cl.AdvertiseAddress = n.peer, n.peer
		cl.TLS = tlsDir(c.layout.tls()).node(n.name)
		cl.BootstrapExpect, cl.SnapshotThreshold, cl.TrailingLogs = 3, 32, 16
		cl.SnapshotInterval = time.Second
		for _, other := range c.nodes {
			cl.RetryJoin = append(cl.RetryJoin, other.peer)
		}
		api := httpapi.DefaultConfig()
		api.Git.VerifyTokens = false
		n.app, err = newApp(parts{
			cluster: cl, scheduler: scheduler.DefaultConfig(), api: api, listener: web[i],
			secrets: c.sealed, runner: c.runner, log: c.log.With("node", n.name), registry: newRegistry(readBuildInfo()),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &running{devCluster: c, failed: startAll(c)}
	t.Cleanup(func() { r.end(t) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.ready(ctx, r.failed); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		r.all = append(r.all, caller{base: "http://" + n.http, key: c.key.Value})
	}
	return r
}

// fill writes the data of takeoverFacts through the API and stops the cluster.
func fill(t *testing.T, r *running) takeoverFacts {
	t.Helper()
	n := r.all[0]
	facts := takeoverFacts{Key: r.key.Value}
	for i := range 60 {
		n.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{
			"language": fmt.Sprintf("language-%d", i), "llm_model": "m", "llm_api_key": "sealed-value"})
	}
	for _, name := range []string{"alice", "bob"} {
		n.do(t, http.StatusCreated, http.MethodPost, "/api/v1/operator/keys",
			map[string]any{"user": name, "name": name + "-laptop"})
	}
	task := r.all[1].awaitTask(t, n.startConversation(t, "hello"))
	facts.Conversation, facts.Sandbox = *task.ConversationID, *task.SandboxID
	facts.Paused = r.all[2].startSandbox(t)
	inSandbox(t, n.awaitSandbox(t, facts.Paused, "RUNNING"), "echo kept > kept.txt")
	n.do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+facts.Paused+"/pause", nil)
	n.awaitSandbox(t, facts.Paused, "PAUSED")
	for i := range 60 {
		n.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": fmt.Sprintf("language-%d", 60+i)})
	}
	facts.Version = r.nodes[0].app.node.Status().ProtocolVersion
	facts.Keys, facts.Specs = listed(t, n)
	for _, node := range r.nodes {
		if err := node.app.node.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A few entries after the snapshot, so that the log is replayed too.
	for range 5 {
		n.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "last"})
	}
	facts.Settings = string(n.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil).body)
	r.sameState(t)
	r.end(t)
	return facts
}

// listed returns the names of the API keys and the ids of the specs.
func listed(t *testing.T, n caller) (keys, specs []string) {
	t.Helper()
	var page struct {
		Items []struct {
			ID   any    `json:"id"`
			Name string `json:"name"`
		} `json:"items"`
	}
	n.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/keys", nil).json(t, &page)
	for _, k := range page.Items {
		keys = append(keys, k.Name)
	}
	page.Items = nil
	n.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/specs", nil).json(t, &page)
	for _, s := range page.Items {
		specs = append(specs, fmt.Sprint(s.ID))
	}
	return keys, specs
}

// pack writes dir and facts.json into a .tar.gz.
func pack(t *testing.T, dir string, facts takeoverFacts, path string) {
	t.Helper()
	text, err := jsonText(facts)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "facts.json", Mode: 0o600, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || name == dir {
				return err
			}
			return packOne(w, dir, name, d)
		})
	}
	if err := errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func packOne(w *tar.Writer, dir, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil // sockets
	}
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	if h.Name, err = filepath.Rel(dir, name); err != nil {
		return err
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	if err := w.WriteHeader(h); err != nil || info.IsDir() {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}
