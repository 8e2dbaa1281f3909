package main

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/native"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/agents/modelserver"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// TestModels_Try asks the servers of the flags, of the settings and of a profile.
func TestModels_Try(t *testing.T) {
	t.Parallel()
	model := modeltest.New(t, &modeltest.Script{
		Key: "sk-try", Models: []string{"scripted"}, Window: 32768,
		Stories: modeltest.Turns(modeltest.Text("one two three four five six seven")).Stories,
	})
	home := map[string]string{"HOME": t.TempDir(), "LLM_API_KEY": "sk-try"}
	code, out, stderr := runCommandWith(t, home, "", "models", "try", "--model", "openai/scripted", "--base-url",
		model.BaseURL()+"/chat/completions")
	for _, want := range []string{
		"reachable       yes", "window          32768 tokens, by the server", "streaming       yes", "tools           none",
		"vision          unclear", "server          " + model.BaseURL() + "\n",
	} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d; no %q in\n%s%s", code, want, out, stderr)
		}
	}
	home["LLM_API_KEY"] = "sk-wrong-key"
	code, out, stderr = runCommandWith(t, home, "", "models", "try", "--model", "openai/scripted",
		"--base-url", model.BaseURL())
	if code != exitFailed || !strings.Contains(stderr, "refuses the API key") ||
		strings.Contains(out+stderr, "sk-wrong-key") {
		t.Errorf("a wrong key: exit %d\n%s%s", code, out, stderr)
	}
	if code, _, stderr := runCommandWith(t, home, "", "models", "try", "work", "--model", "x"); code != exitUsage ||
		!strings.Contains(stderr, "a profile has its own") {
		t.Errorf("two models: exit %d %s", code, stderr)
	}

	r := startDev(t, t.TempDir())
	env, ada := r.user(t, "ada")
	env["LLM_API_KEY"] = "sk-try"
	ada.do(t, http.StatusOK, http.MethodPost, "/api/settings",
		map[string]any{"llm_model": "openai/scripted", "llm_base_url": model.BaseURL()})
	ada.do(t, http.StatusCreated, http.MethodPost, "/api/v1/settings/profiles/work",
		map[string]any{"llm": map[string]any{"model": "hosted_vllm/scripted", "base_url": model.BaseURL()}})
	for name, want := range map[string]string{"": "openai/scripted", "work": "hosted_vllm/scripted"} {
		args := []string{"models", "try", "--json"}
		if name != "" {
			args = append(args, name)
		}
		code, out, stderr := runCommandWith(t, env, "", args...)
		var x native.Examination
		if err := json.Unmarshal([]byte(out), &x); err != nil || code != exitOK || x.Model != want || !x.Reachable ||
			x.Window != 32768 {
			t.Errorf("%q: exit %d, %+v: %v\n%s", name, code, x, err, stderr)
		}
	}
}

// TestModels_TryEachServer: the imitated servers answer, and what they refuse is said.
func TestModels_TryEachServer(t *testing.T) {
	t.Parallel()
	home := map[string]string{"HOME": t.TempDir(), "LLM_API_KEY": "sk-scripted"}
	repaired := 0
	for _, b := range modelserver.All() {
		if b.Refuse == nil || b.Past != modelserver.NoPast || b.Effort != "" {
			continue
		}
		s := modelserver.New(t, b)
		at := s.URL
		if api := preset.API(cmp.Or(b.Asked, b.API)); api != "" {
			at += api.Path()
		}
		code, out, stderr := runCommandWith(t, home, "", "models", "try", "--model", "openai/scripted", "--base-url", at)
		if code != exitOK || !strings.Contains(out, "reachable       yes") {
			t.Errorf("%s (%s): exit %d\n%s%s", b.Name, b.Maker, code, out, stderr)
		}
		if !strings.Contains(out, "repaired        -") {
			repaired++
		}
	}
	if repaired < 10 {
		t.Errorf("%d servers needed a repair", repaired)
	}
}

// TestDoctor_ServersOfModels: each server that the configuration names is asked from this machine.
func TestDoctor_ServersOfModels(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "https://")
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	found := examineModels(t.Context(), []fsm.ModelServer{
		{Host: host, CA: ca}, {Host: host}, {Host: strings.TrimPrefix(plain.URL, "http://")}, {Host: "127.0.0.1:1"},
	})
	want := []struct {
		result string
		text   string
	}{
		{checkOK, "answers (401)"}, {checkWarn, "certificate"}, {checkOK, "answers (404) without TLS"},
		{checkWarn, "refused"},
	}
	for i, f := range found {
		if f.Result != want[i].result || !strings.Contains(f.Detail, want[i].text) {
			t.Errorf("%d: %+v, want %+v", i, f, want[i])
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d findings", len(found))
	}
}
