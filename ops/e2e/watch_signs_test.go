package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
	"bivouac.dev/bivouac/ops/watch"
)

// TestWatch_Signs makes the faults that nobody asks of a node: a crash loop, a target that Prometheus
// lost, a secret id that ends, a model that is away, a certificate that is not renewed, and files
// without backups. For BivouacProtocolVersionWaits a day would have to pass, at sixty times the speed
// 24 minutes.
func TestWatch_Signs(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	backups := fmt.Sprintf("backup {\n  dir = %q\n}\n", filepath.Join(t.TempDir(), "backups"))
	f := testcluster.Start(t, testcluster.Options{Config: backups})
	var targets []string
	for _, n := range f.Nodes {
		targets = append(targets, strings.TrimPrefix(n.Base, "http://"))
	}
	w := watched{t, f.StartPrometheus(t, targets, watch.Rules(watchScale))}
	w.crashLoop(f)
	w.lostTarget(f, targets)
	w.secretIDEnds(f)
	w.modelAway(f)

	node := f.Followers(t)[0]
	w.must(node.Configure(func(c *nodeconfig.Config) {
		c.Peering = "vault_pki {\n  mount = \"none\"\n  role = \"none\"\n}\n"
	}))
	node.Kill()
	former, err := peernet.ReadCertificates(node.TLS.CertFile)
	w.must(err)
	pair, err := peernet.CAIssuer(node.TLS.CAFile, filepath.Join(filepath.Dir(node.TLS.CAFile), "ca-key.pem"),
		30*time.Second)(t.Context(), former[0])
	w.must(err)
	w.must(peernet.WritePair(node.TLS, pair, os.WriteFile))
	node.Start(t)
	w.awaits("BivouacCertificateRenewalFails", true)

	for _, n := range f.Nodes {
		n.Kill()
		w.must(n.Configure(func(c *nodeconfig.Config) { c.More = strings.Replace(c.More, backups, "", 1) }))
		n.Start(t)
	}
	w.awaits("BivouacNoBackups", true)
}

// crashLoop ends a follower again and again.
func (w watched) crashLoop(f *testcluster.Cluster) {
	node := f.Followers(w)[0]
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			node.Kill()
			if err := node.Spawn(); err != nil {
				w.Error(err)
				return
			}
			testcluster.Pause(ctx, 1500*time.Millisecond) // long enough for a scrape
		}
	}()
	w.awaits("BivouacNodeRestarts", true)
	cancel()
	<-ended
	node.Ready(w)
	w.awaits("BivouacNodeRestarts", false)
}

// lostTarget takes a node from Prometheus' targets.
func (w watched) lostTarget(f *testcluster.Cluster, targets []string) {
	w.must(f.Targets(targets[1:]))
	w.awaits("BivouacNotScraped", true)
	w.must(f.Targets(targets))
	w.awaits("BivouacNotScraped", false)
}

// secretIDEnds gives the nodes a secret id that is not replaced before its end.
func (w watched) secretIDEnds(f *testcluster.Cluster) {
	const role = "auth/approle/role/bivouac"
	write := func(ttl string) {
		var made struct {
			Data struct {
				SecretID string `json:"secret_id"`
			}
		}
		w.must(errors.Join(
			f.Vault.Do(w.Context(), http.MethodPost, role, map[string]any{"secret_id_ttl": ttl}, nil),
			f.Vault.Do(w.Context(), http.MethodPost, role+"/secret-id", nil, &made),
			os.WriteFile(filepath.Join(f.Dir, "secret-id"), []byte(made.Data.SecretID), 0o600),
		))
	}
	write("1m")
	w.awaits("BivouacSecretIDExpires", true)
	write("720h")
	w.awaits("BivouacSecretIDExpires", false)
}

// modelAway asks a model at an endpoint that does not answer.
func (w watched) modelAway(f *testcluster.Cluster) {
	f.Leader(w).Sure(w, http.MethodPut, "/api/v1/operator/config",
		map[string]any{"llm": map[string]any{"hosts": []string{"127.0.0.1"}}}, nil)
	node := f.Nodes[0]
	user := testcluster.Client{Base: node.Base, Key: node.NewKey(w, "ada")}
	user.Sure(w, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/away", "llm_api_key": workModelKey, "llm_base_url": "http://127.0.0.1:1/v1",
	}, nil)
	var task testcluster.StartTask
	user.Sure(w, http.MethodPost, "/api/v1/app-conversations", map[string]any{}, &task)
	task = user.AwaitTask(w, task.ID)
	m := modelAsker{w.T, user.AwaitSandbox(w, *task.SandboxID, "RUNNING").Inside().Key, *task.ConversationID}
	token := m.token(node)
	asked := make(chan struct{})
	ctx, cancel := context.WithCancel(w.Context())
	go func() {
		defer close(asked)
		for ctx.Err() == nil {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, node.Base+"/llm/v1/chat/completions",
				bytes.NewReader([]byte(`{"model":"away","messages":[{"role":"user","content":"go on"}]}`)))
			if err != nil {
				return
			}
			r.Header.Set("Authorization", "Bearer "+token)
			if res, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			testcluster.Pause(ctx, 300*time.Millisecond)
		}
	}()
	w.awaits("BivouacModelsFail", true)
	cancel()
	<-asked
}
