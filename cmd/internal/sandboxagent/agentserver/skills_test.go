package agentserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/hooks"
)

func TestSkillsAndHooks_OfProjectAndUser(t *testing.T) {
	home, project := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(home, ".openhands/skills/mine.md"):       "---\ntriggers: [mine]\n---\nof the user",
		filepath.Join(home, ".openhands/hooks.json"):           `{"stop":[{"hooks":[{"command":"user"}]}]}`,
		filepath.Join(project, "AGENTS.md"):                    "be brief",
		filepath.Join(project, ".agents/skills/pdf/SKILL.md"):  "---\ndescription: PDFs\n---\ntext",
		filepath.Join(project, ".openhands/hooks.json"):        `{"Stop":[{"hooks":[{"command":"project"}]}]}`,
		filepath.Join(project, ".openhands/skills/broken.md"):  "---\ntriggers: [\n---\n",
		filepath.Join(project, "other/.openhands/hooks.json"):  `{"stop":`,
		filepath.Join(project, "other/.openhands/ignored.txt"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := serveAt(t, t.TempDir(), inherits("HOME="+home))
	body := func(dir string, more string) string { return `{"project_dir":` + quote(t, dir) + more + `}` }
	for _, c := range []struct {
		body string
		want []string
	}{
		{body(project, ""), []string{"repo agents", "agentskills pdf", "knowledge mine"}},
		{
			body(project, `,"load_user":false,"load_public":true,"registered_marketplaces":[]`),
			[]string{"repo agents", "agentskills pdf"},
		},
		{body(project, `,"load_project":false`), []string{"knowledge mine"}},
		{body("relative", `,"load_user":false`), []string{}}, {`{}`, []string{"knowledge mine"}},
	} {
		got := []string{}
		for _, one := range decodeJSON[skillsAnswer](t, s.want(200, "POST", "/api/skills", c.body)).Skills {
			got = append(got, one.Type+" "+one.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.body, got, c.want)
		}
	}
	s.want(422, "POST", "/api/skills", `{"load_user":"x"}`)
	for _, c := range []struct {
		body string
		want []string
	}{
		{body(project, ""), []string{"project"}}, {body(project, `,"load_user":true`), []string{"project", "user"}},
		{body(t.TempDir(), ""), nil}, {
			body(filepath.Join(project, "other"), ""),
			nil,
		}, {`{"load_user":true}`, []string{"user"}}, {`{}`, nil},
	} {
		var got []string
		answer := decodeJSON[struct {
			HookConfig *hooks.Config `json:"hook_config"`
		}](t, s.want(200, "POST", "/api/hooks", c.body))
		for _, h := range answer.HookConfig.For(hooks.Stop, "") {
			got = append(got, h.Command)
		}
		if !slices.Equal(got, c.want) || (answer.HookConfig == nil) != (c.want == nil) {
			t.Errorf("%s: %q, want %q", c.body, got, c.want)
		}
	}
}

func quote(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Clients compare the version with what they need, in three numbers; and a server without VS Code
// or a desktop says so.
func TestServerInfo_SaysWhatClientsAskFor(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/server_info", "/"} {
		info := decodeJSON[struct {
			Version     string   `json:"version"`
			UsableTools []string `json:"usable_tools"`
		}](t, s.want(200, "GET", path, ""))
		if info.Version != protocolVersion || !slices.Contains(info.UsableTools, "terminal") {
			t.Errorf("%+v", info)
		}
	}
	for _, path := range []string{"/api/tools/", "/api/tools"} {
		if tools := decodeJSON[[]string](t, s.want(200, "GET", path, "")); !slices.Contains(tools, "file_editor") {
			t.Errorf("%q", tools)
		}
	}
	s.want(503, "GET", "/api/vscode/url", "")
	s.want(503, "GET", "/api/desktop/url", "")
	if text := s.want(200, "GET", "/api/vscode/status", ""); text == "" {
		t.Error("no status")
	}
}
