package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/legacy"
)

// TestTexts_DecoderAndApplyCountCharacters: a text of as many three-byte characters as its bound is
// accepted by the decoder and by Apply. One character more is refused, in the same words.
func TestTexts_DecoderAndApplyCountCharacters(t *testing.T) {
	t.Parallel()
	const settings, start, v0 = "/api/settings", "/api/v1/app-conversations", "/api/conversations"
	for _, one := range []struct {
		path, body string // %s is the text
		limit      int
	}{
		{settings, `{"language":%s}`, fsm.MaxLine},
		{settings, `{"agent":%s}`, fsm.MaxLine},
		{settings, `{"security_analyzer":%s}`, fsm.MaxLine},
		{settings, `{"llm_model":%s}`, fsm.MaxLine},
		{settings, `{"llm_base_url":%s}`, fsm.MaxLine},
		{settings, `{"sandbox_base_container_image":%s}`, fsm.MaxLine},
		{settings, `{"sandbox_runtime_container_image":%s}`, fsm.MaxLine},
		{settings, `{"email":%s}`, fsm.MaxLine},
		{settings, `{"git_user_name":%s}`, fsm.MaxLine},
		{settings, `{"git_user_email":%s}`, fsm.MaxLine},
		{settings, `{"llm_api_key":%s}`, fsm.MaxParagraph},
		{settings, `{"secrets_store":{"custom_secrets":{"A":{"secret":"s","description":%s}}}}`, fsm.MaxLine},
		{settings, `{"secrets_store":{"custom_secrets":{"A":{"secret":%s}}}}`, fsm.MaxParagraph},
		{settings, `{"secrets_store":{"provider_tokens":{"github":{"user_id":%s}}}}`, fsm.MaxName},
		{start, `{"system_message_suffix":%s}`, fsm.MaxParagraph},
		{start, `{"llm_model":%s}`, fsm.MaxLine},
		{start, `{"selected_repository":%s}`, fsm.MaxPath},
		{start, `{"selected_branch":%s,"selected_repository":"a/b"}`, fsm.MaxPath},
		{start, `{"title":%s}`, fsm.MaxLine},
		{start, `{"observability_tags":[%s]}`, fsm.MaxLine},
		{start, `{"observability_span_name":%s}`, fsm.MaxLine},
		{start, `{"initial_message":{"content":[{"type":"text","text":%s}]}}`, fsm.MaxText},
		{
			start,
			`{"suggested_task":{"git_provider":"github","task_type":"OPEN_ISSUE","repo":%s,"issue_number":1,"title":"t"}}`,
			fsm.MaxPath,
		},
		{
			start,
			`{"suggested_task":{"git_provider":"github","task_type":"OPEN_ISSUE","repo":"a/b","issue_number":1,"title":%s}}`,
			fsm.MaxLine,
		},
		{start, `{"plugins":[{"source":%s}]}`, fsm.MaxLine},
		{start, `{"plugins":[{"source":"a","ref":%s}]}`, fsm.MaxPath},
		{start, `{"plugins":[{"source":"a","repo_path":%s}]}`, fsm.MaxPath},
		{v0, `{"conversation_instructions":%s}`, fsm.MaxParagraph},
		{v0, `{"initial_user_msg":%s}`, fsm.MaxText},
	} {
		h := newHarness(t).withSpec().withSettings()
		h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
		filled := func(n int) string { return fmt.Sprintf(one.body, `"`+strings.Repeat("字", n)+`"`) }
		if res := h.do(h.alice, "POST", one.path, filled(one.limit)); res.status != 200 {
			t.Errorf("%s %s of %d characters: %d %.300s", one.path, one.body, one.limit, res.status, res.body)
		}
		over := h.do(h.alice, "POST", one.path, filled(one.limit+1)).want(t, 422)
		want := fmt.Sprintf("String should have at most %d characters", one.limit)
		if !strings.Contains(string(over.body), want) {
			t.Errorf("%s %s of %d characters: %.300s, want %s", one.path, one.body, one.limit+1, over.body, want)
		}
	}
	long := strings.Repeat("字", fsm.MaxLine+1)
	err := fsm.Validate(&fsm.SettingsPutBody{Values: fsm.SettingsValues{Language: &long}})
	if want := fmt.Sprintf("language: String should have at most %d characters", fsm.MaxLine); err == nil ||
		err.Error() != want {
		t.Errorf("the state's words are %v, want %s", err, want)
	}
}

// TestTexts_NameOfACustomSecret: a name of 256 characters has a path that the secret store takes.
func TestTexts_NameOfACustomSecret(t *testing.T) {
	h := newHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	put := func(name string) reply {
		body, _ := json.Marshal(map[string]any{
			"secrets_store": map[string]any{"custom_secrets": map[string]any{name: map[string]string{"secret": "s"}}},
		})
		return h.do(h.alice, "POST", "/api/settings", string(body))
	}
	name := strings.Repeat("𝒳", fsm.MaxName)
	put(name).want(t, 200)
	put(name+"x").want(t, 422)
	v, err := h.cluster.View(t.Context(), cluster.Stale)
	if err != nil {
		t.Fatal(err)
	}
	list := v.CustomSecrets("alice")
	if len(list) != 1 || list[0].Name != name || len(list[0].Ref.Path) > 512 {
		t.Fatalf("custom secrets: %+v", list)
	}
	if got := fsm.CustomSecretPath("alice",
		strings.Repeat("a", 255)); got != "users/alice/custom/"+strings.Repeat("YWFh", 85) {
		t.Errorf("the path of a short name changed: %s", got)
	}
}

// TestV0Start_LongIDIsStored: from protocol version 4 on an id of 100 three-byte characters is kept.
func TestV0Start_LongIDIsStored(t *testing.T) {
	id := strings.Repeat("字", 100)
	for version, want := range map[int]string{fsm.VersionHistory: "", fsm.VersionCharacters: id} {
		h := newHarness(t).withSpec().withSettings()
		h.apply("", &fsm.ProtocolRaiseBody{Version: version})
		var got legacy.StartBody
		h.do(h.alice, "POST", "/api/conversations", `{"conversation_id":"`+id+`"}`).want(t, 200).json(t, &got)
		v, err := h.cluster.View(t.Context(), cluster.Stale)
		if err != nil {
			t.Fatal(err)
		}
		tasks, _ := v.StartTasks("alice", fsm.StartTaskFilter{}, fsm.Page{Limit: 2})
		if got.ConversationID != id || len(tasks) != 1 || tasks[0].V0ID != want {
			t.Errorf("version %d: answered %s, stored %+v", version, got.ConversationID, tasks)
		}
	}
}
