package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
)

// TestMonitor_FollowsAnotherNodeAtALevelOfItsOwn: the nodes log from info on, the follower sees
// debug lines of the named node alone, and nobody does without an operator's key.
func TestMonitor_FollowsAnotherNodeAtALevelOfItsOwn(t *testing.T) {
	c, err := openDev(devOptions{dataDir: t.TempDir(), nodes: 3, logLevel: "info", logFormat: "json"})
	if err != nil {
		t.Fatal(err)
	}
	r := runningDev(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs buffer
	p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(name string) string {
		return map[string]string{"BIVOUAC_API_KEY": r.key.Value, "BIVOUAC_ADDR": r.all[0].base}[name]
	}}
	done := make(chan int, 1)
	go func() { done <- p.run(ctx, []string{"monitor", "--log-level", "debug", "--node", "n2", "--json"}) }()
	kinds := logKinds(t)
	eventually(t, "a debug line of n2", func() error {
		r.all[1].do(t, http.StatusOK, "GET", "/api/v1/sandboxes/search", nil)
		for line := range strings.Lines(out.String()) {
			var l struct{ Node, Level, Msg, Route string }
			if !strings.HasSuffix(line, "\n") {
				break
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%v: %q", err, line)
			}
			if l.Node != "n2" {
				t.Fatalf("a line of another node: %s", line)
			}
			for _, fault := range schemaFaults(kinds, []byte(line)) {
				t.Errorf("%s\n\t%s", fault, line)
			}
			if l.Level == "DEBUG" && l.Msg == "request served" {
				return nil
			}
		}
		return fmt.Errorf("it has %q %q", out.String(), errs.String())
	})
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	text, err := os.ReadFile(filepath.Join(r.layout.logs(), "bivouac.log"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(`"level":"DEBUG"`)) {
		t.Error("the node's own log changed its level")
	}
	user := caller{base: r.all[0].base, key: userKey(t, r)}
	for _, path := range []string{
		"log?node=n2",
		"pprof/heap",
		"pprof/goroutine?node=n3",
		"debug/metrics",
		"debug/config",
	} {
		caller{base: user.base}.do(t, http.StatusUnauthorized, "GET", "/api/v1/operator/"+path, nil)
		user.do(t, http.StatusForbidden, "GET", "/api/v1/operator/"+path, nil)
	}
	user.do(t, http.StatusNotFound, "GET", "/debug/pprof/", nil)
	r.all[0].do(t, http.StatusNotFound, "GET", "/api/v1/operator/log?node=n9", nil)
	// A node's certificate without an operator's key shows nothing.
	if _, err := r.nodes[0].app.node.Observe(t.Context(), "n2",
		cluster.Observation{Kind: cluster.ObserveMetrics}); err == nil ||
		!strings.Contains(err.Error(), "operator's key") {
		t.Errorf("without a key: %v", err)
	}
}

// userKey issues a key that is no operator's.
func userKey(t testing.TB, r *running) string {
	t.Helper()
	var made struct {
		Key string `json:"key"`
	}
	r.all[0].do(t, http.StatusCreated, "POST", "/api/v1/operator/keys",
		map[string]any{"user": "carol", "name": "k"}).json(t, &made)
	if made.Key == "" {
		t.Fatal("no key")
	}
	return made.Key
}

// TestLogFeed_SlowFollowersLoseLinesAndAreTold: a follower holds a bounded number of bytes, and there
// is a bounded number of followers.
func TestLogFeed_SlowFollowersLoseLinesAndAreTold(t *testing.T) {
	feed := newLogFeed()
	var own bytes.Buffer
	log := feed.attach(newLogger(&own, "json", slog.LevelError)).With("node", "n1")
	log.Debug("before")
	if _, err := feed.follow(canceled(), "a", "debug", "json"); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", 1000)
	for range 2000 {
		log.Debug("line", "error", errors.New(text))
	}
	lines, err := feed.follow(t.Context(), "a", "debug", "json")
	if err != nil || len(lines) > followedBytes || len(lines) < followedBytes/2 {
		t.Fatalf("%d bytes, %v", len(lines), err)
	}
	kept := bytes.Count(lines, []byte("\n"))
	lines, err = feed.follow(t.Context(), "a", "", "")
	want := fmt.Sprintf(`"count":%d`, 2000-kept)
	if err != nil || !bytes.Contains(lines, []byte(want)) {
		t.Errorf("no %s in %s, %v", want, lines, err)
	}
	if own.Len() > 0 {
		t.Errorf("the log itself has %s", own.String())
	}
	for i := range maxFollowers {
		_, err = feed.follow(canceled(), fmt.Sprint("b", i), "info", "text")
	}
	if err == nil {
		t.Errorf("more than %d followers", maxFollowers)
	}
}

// canceled is a context that has ended: a call with it does not wait for lines.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestDebug_ArchiveHasEveryNodeAndNoSecret collects an archive while secrets are stored and used, and
// searches it for them.
func TestDebug_ArchiveHasEveryNodeAndNoSecret(t *testing.T) {
	r := startDev(t, t.TempDir())
	canaries := []string{r.key.Value, userKey(t, r), "canary-llm-0123456789", "canary-secret-abcdef"}
	file := filepath.Join(t.TempDir(), "d.tar.gz")
	stop := make(chan struct{})
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = r.all[i%3].try("POST", "/api/settings", map[string]any{"llm_model": "m", "llm_api_key": canaries[2]})
			_, _ = caller{base: r.all[i%3].base, key: canaries[1]}.try("GET", "/api/v1/operator/keys?tkn="+canaries[3], nil)
			_, _ = caller{base: r.all[i%3].base, key: canaries[3]}.try("GET", "/api/settings", nil)
		}
	}()
	env := map[string]string{"BIVOUAC_API_KEY": r.key.Value, "BIVOUAC_ADDR": r.all[0].base}
	code, stdout, stderr := runCommand(t, env, "operator", "debug", "--duration", "4s", "--output", file)
	close(stop)
	<-worked
	if code != 0 || strings.TrimSpace(stdout) != file || !strings.Contains(stderr, "n3: done") {
		t.Fatalf("exit code %d: %q %q", code, stdout, stderr)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	files := unpackDebug(t, file)
	for _, name := range []string{"n1", "n2", "n3"} {
		for _, part := range []string{"log.jsonl", "metrics-00.txt", "metrics-end.txt", "goroutines.txt", "heap.pprof"} {
			if len(files["bivouac-debug/nodes/"+name+"/"+part]) == 0 {
				t.Errorf("no %s of %s: %s", part, name, files["bivouac-debug/errors.txt"])
			}
		}
	}
	for _, name := range []string{"status.json", "members.json", "hold.json", "config.json"} {
		if !json.Valid(files["bivouac-debug/"+name]) {
			t.Errorf("%s: %s", name, files["bivouac-debug/"+name])
		}
	}
	if !bytes.Contains(files["bivouac-debug/nodes/n2/log.jsonl"], []byte(`"msg":"request served"`)) {
		t.Error("n2's log has no request")
	}
	searchFor(t, files, canaries)
	// A second run does not replace the archive.
	if code, _, _ := runCommand(t, env, "operator", "debug", "--duration", "1s", "--output", file); code == 0 {
		t.Error("the archive was replaced")
	}
}

// unpackDebug reads an archive, and what is compressed in it.
func unpackDebug(t testing.TB, file string) map[string][]byte {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for a := tar.NewReader(z); ; {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		if inner, err := gzip.NewReader(bytes.NewReader(body)); err == nil { // profiles
			if plain, err := io.ReadAll(inner); err == nil {
				body = plain
			}
		}
		files[h.Name] = body
	}
}

// searchFor fails if a canary is in a file: plain, hexadecimal or base64.
func searchFor(t testing.TB, files map[string][]byte, canaries []string) {
	t.Helper()
	for name, body := range files {
		for _, c := range canaries {
			forms := []string{c, hex.EncodeToString([]byte(c))}
			for shift := range 3 { // base64 of a text depends on where it begins
				enc := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + c))
				forms = append(forms, enc[4:len(enc)-4])
			}
			for _, form := range forms {
				if bytes.Contains(bytes.ToLower(body), bytes.ToLower([]byte(form))) {
					t.Errorf("%s has the canary %.10s…", name, c)
				}
			}
		}
	}
}

// TestWithoutSecrets: a configuration keeps the names of files and loses credentials.
func TestWithoutSecrets(t *testing.T) {
	cfg, err := loadConfig("testdata/config/good_full.hcl")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Vault.RoleID, cfg.Nomad.Address = "canary-role-id", "https://user:canary-password@nomad:4646"
	text, err := withoutSecrets(cfg)
	if err != nil {
		t.Fatal(err)
	}
	searchFor(t, map[string][]byte{"config": text}, []string{"canary-role-id", "canary-password"})
	for _, want := range []string{cfg.DataDir, cfg.Vault.SecretIDFile, cfg.Nomad.TokenFile, cfg.NodeName, `"30s"`} {
		if want == "" || !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}
