package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestCopies_HoldNoSecret: a user gives a conversation every kind of secret, and its sandbox works
// and is copied. No secret, and neither of the sandbox's keys, is in a file of the workspace, and
// so of a copy, nor in the store.
func TestCopies_HoldNoSecret(t *testing.T) {
	store := t.TempDir()
	f := testcluster.Start(t, testcluster.Options{
		Config: fmt.Sprintf("workspaces {\n  backup   = \"file://%s\"\n  interval = \"1h\"\n}\n", store),
	})
	const secret = "canary-4c1f7a90-secret"
	node := f.Nodes[0]
	node.Sure(t, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "m", "llm_api_key": secret + "-llm", "search_api_key": secret + "-search",
		"mcp_config": map[string]any{"sse_servers": []any{map[string]any{"url": "https://mcp.example.org", "api_key": secret +
			"-mcp"}}},
		"secrets_store": map[string]any{
			"provider_tokens": map[string]any{"github": map[string]any{"token": secret + "-git"}},
			"custom_secrets":  map[string]any{"CUSTOM": map[string]any{"secret": secret + "-custom", "description": "drill"}},
		},
	}, nil)
	var task testcluster.StartTask
	node.Sure(t, http.MethodPost, "/api/v1/app-conversations",
		map[string]any{"title": "drill", "secrets": map[string]any{"TOKEN": secret + "-request"}}, &task)
	task = node.AwaitTask(t, task.ID)
	id := *task.SandboxID
	sb := node.AwaitSandbox(t, id, "RUNNING")
	keepFile(t, sb, workspaceFile)
	dir, err := sb.WorkspaceDir()
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		Data struct{ Data map[string]string }
	}
	if err := f.Vault.Do(t.Context(), http.MethodGet, "secret/data/default/sandbox-"+id+"/session", nil,
		&entry); err != nil {
		t.Fatal(err)
	}
	wanted := [][]byte{[]byte(secret)}
	for _, member := range []string{"key", "secret_key"} {
		if entry.Data.Data[member] == "" {
			t.Fatalf("Vault has no %s of the sandbox", member)
		}
		wanted = append(wanted, []byte(entry.Data.Data[member]))
	}
	node.Change(t, id, "pause")
	node.AwaitSandbox(t, id, "PAUSED")
	testcluster.Eventually(t, "a copy", func() error {
		manifests, err := filepath.Glob(filepath.Join(store, "*", id, "*", "manifest*"))
		if err == nil && len(manifests) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
	for _, root := range []string{dir, store} {
		files, conversations := 0, 0
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			files++
			if bytes.Contains(raw, []byte(*task.ConversationID)) || filepath.Base(filepath.Dir(path)) == *task.ConversationID {
				conversations++
			}
			for _, w := range wanted {
				if bytes.Contains(raw, w) {
					t.Errorf("%s has a secret", path)
				}
			}
			return err
		})
		if err != nil || files == 0 || root == dir && conversations == 0 {
			t.Errorf("%s has %d files, %d of the conversation: %v", root, files, conversations, err)
		}
		t.Logf("--- verdict: %d files, %d of the conversation, without a secret in %s", files, conversations, root)
	}
}
