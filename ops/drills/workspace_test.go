package drills

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/fleet"
)

// workspaceFile is the file the drills keep in a workspace.
const workspaceFile = "kept.txt"

// workspaceDir asks a RUNNING sandbox where its workspace is. Where a command
// starts is no answer: with raw_exec that is the directory of one allocation.
func workspaceDir(sb fleet.Sandbox) (string, error) {
	if sb.SpecID == "docker" {
		return "/workspace", nil // and no shell to ask
	}
	a, err := sb.Inside().Try(http.MethodPost, "/api/bash/execute_bash_command", map[string]any{"command": `dirname "$OH_CONVERSATIONS_PATH"`})
	if err != nil {
		return "", err
	}
	var out struct {
		Stdout *string `json:"stdout"`
	}
	if err := a.Decode(&out); err != nil {
		return "", err
	}
	if out.Stdout == nil {
		return "", errors.New("dirname printed nothing: " + string(a.Body))
	}
	return strings.TrimSpace(*out.Stdout), nil
}

// keepFile writes the sandbox's id into a file of its workspace.
func keepFile(t testing.TB, sb fleet.Sandbox, name string) {
	t.Helper()
	fleet.Eventually(t, "a file in sandbox "+sb.ID, func() error {
		dir, err := workspaceDir(sb)
		if err != nil {
			return err
		}
		return sb.WriteFile(dir+"/"+name, sb.ID)
	})
}

// hasFile finds that file again.
func hasFile(t testing.TB, sb fleet.Sandbox, name string) {
	t.Helper()
	fleet.Eventually(t, "the file in sandbox "+sb.ID, func() error {
		dir, err := workspaceDir(sb)
		if err != nil {
			return err
		}
		got, err := sb.ReadFile(dir + "/" + name)
		if err == nil && got != sb.ID {
			raw, _ := json.Marshal(got)
			t.Fatalf("the file in sandbox %s holds %s", sb.ID, raw)
		}
		return err
	})
}
