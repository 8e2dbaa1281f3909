package fsm

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// boundedText is one text of a command: a body that holds it, and its bounds from VersionCharacters
// on, in characters, and before it, in bytes.
type boundedText struct {
	field       string
	body        func(s string) Body
	now, before int
}

// boundedTexts returns every text that a client chooses.
func boundedTexts() []boundedText {
	setting := func(field string, set func(*SettingsValues, *string)) boundedText {
		return boundedText{field, func(s string) Body {
			b := &SettingsPutBody{}
			set(&b.Values, &s)
			return b
		}, MaxLine, 4096}
	}
	start := func(field string, now, before int, set func(*StartRequest, string)) boundedText {
		return boundedText{field, func(s string) Body {
			b := &StartTaskCreateBody{ID: "t", ConversationID: "c"}
			set(&b.Request, s)
			return b
		}, now, before}
	}
	const name, path, detail, text = 256, 1024, 64 << 10, 1 << 20
	ref := SecretRef{Path: "p", Version: 1}
	return []boundedText{
		setting("language", func(v *SettingsValues, s *string) { v.Language = s }),
		setting("agent", func(v *SettingsValues, s *string) { v.Agent = s }),
		setting("security_analyzer", func(v *SettingsValues, s *string) { v.SecurityAnalyzer = s }),
		setting("llm_model", func(v *SettingsValues, s *string) { v.LLMModel = s }),
		setting("llm_base_url", func(v *SettingsValues, s *string) { v.LLMBaseURL = s }),
		setting("sandbox_base_container_image", func(v *SettingsValues, s *string) { v.SandboxBaseContainerImage = s }),
		setting("sandbox_runtime_container_image", func(v *SettingsValues, s *string) { v.SandboxRuntimeContainerImage = s }),
		setting("email", func(v *SettingsValues, s *string) { v.Email = s }),
		setting("git_user_name", func(v *SettingsValues, s *string) { v.GitUserName = s }),
		setting("git_user_email", func(v *SettingsValues, s *string) { v.GitUserEmail = s }),
		{"a custom secret's name", func(s string) Body {
			return &SettingsPutBody{CustomSecrets: []CustomSecret{{Name: s, Ref: ref}}}
		}, MaxName, name},
		{"a custom secret's description", func(s string) Body {
			return &SettingsPutBody{CustomSecrets: []CustomSecret{{Name: "A", Description: s, Ref: ref}}}
		}, MaxLine, detail},
		{"a git provider's host", func(s string) Body {
			return &ProvidersReplaceBody{Providers: []Provider{{Type: ProviderGitHub, Host: &s}}}
		}, MaxName, path},
		{"a git provider's user_id", func(s string) Body {
			return &ProvidersReplaceBody{Providers: []Provider{{Type: ProviderGitHub, ExternalUserID: &s}}}
		}, MaxName, name},
		start("sandbox_id", MaxName, name, func(q *StartRequest, s string) { q.SandboxID = &s }),
		start("system_message_suffix", MaxParagraph, text, func(q *StartRequest, s string) { q.SystemMessageSuffix = &s }),
		start("llm_model", MaxLine, 4096, func(q *StartRequest, s string) { q.LLMModel = &s }),
		start("agent_profile_id", MaxName, name, func(q *StartRequest, s string) { q.AgentProfileID = &s }),
		start("selected_repository", MaxPath, path, func(q *StartRequest, s string) { q.SelectedRepository = &s }),
		start("selected_branch", MaxPath, path, func(q *StartRequest, s string) { q.SelectedBranch = &s }),
		start("title", MaxLine, detail, func(q *StartRequest, s string) { q.Title = &s }),
		start("observability_tags", MaxLine, detail, func(q *StartRequest, s string) { q.ObservabilityTags = []string{s} }),
		start("observability_span_name", MaxLine, detail, func(q *StartRequest, s string) { q.ObservabilitySpanName = &s }),
		start("text", MaxText, text, func(q *StartRequest, s string) {
			q.InitialMessage = &Message{Content: []ContentBlock{{Text: s}}}
		}),
		start("repo", MaxPath, path, func(q *StartRequest, s string) { q.SuggestedTask = &SuggestedTask{Repo: s} }),
		start("title", MaxLine, detail, func(q *StartRequest, s string) { q.SuggestedTask = &SuggestedTask{Title: s} }),
		start("source", MaxLine, 4096, func(q *StartRequest, s string) { q.Plugins = []PluginSource{{Source: s}} }),
		start("ref", MaxPath, path, func(q *StartRequest, s string) { q.Plugins = []PluginSource{{Ref: &s}} }),
		start("repo_path", MaxPath, path, func(q *StartRequest, s string) { q.Plugins = []PluginSource{{RepoPath: &s}} }),
		{
			"title",
			func(s string) Body { return &ConversationUpdateBody{ID: "c", Set: []string{"title"}, Title: &s} },
			MaxLine,
			detail,
		},
		{
			"name",
			func(s string) Body { return &APIKeyCreateBody{Lookup: "a", Hash: sha("a"), UserID: "ada", Name: s} },
			MaxName,
			name,
		},
		{"a spec's id", func(s string) Body {
			spec := dockerSpec(s)
			return &SpecApplyBody{Specs: []Spec{spec}}
		}, MaxName, name},
	}
}

// TestTexts_AreCountedInCharacters: a text of as many three-byte characters as its bound is
// accepted, one more is refused in the words of the API's decoder.
func TestTexts_AreCountedInCharacters(t *testing.T) {
	for _, one := range boundedTexts() {
		if err := Validate(one.body(strings.Repeat("字", one.now))); err != nil {
			t.Errorf("%s of %d characters is refused: %v", one.field, one.now, err)
		}
		want := fmt.Sprintf("%s: String should have at most %d characters", one.field, one.now)
		if err := Validate(one.body(strings.Repeat("字", one.now+1))); err == nil || err.Error() != want {
			t.Errorf("%s of %d characters: %v, want %s", one.field, one.now+1, err, want)
		}
	}
}

// TestTexts_BelowVersion4AreCountedInBytes: below VersionCharacters the bounds and the words, which
// are part of the state, are those of earlier programs.
func TestTexts_BelowVersion4AreCountedInBytes(t *testing.T) {
	for _, one := range boundedTexts() {
		for version := range VersionCharacters {
			for _, good := range []string{strings.Repeat("x", one.before), strings.Repeat("字", one.before/3)} {
				if err := validate(one.body(good), version); err != nil {
					t.Errorf("version %d: %s of %d bytes is refused: %v", version, one.field, len(good), err)
				}
			}
			want := fmt.Sprintf("%s is longer than %d bytes", one.field, one.before)
			for _, bad := range []string{strings.Repeat("x", one.before+1), strings.Repeat("字", one.before/3+1)} {
				if err := validate(one.body(bad), version); err == nil || err.Error() != want {
					t.Errorf("version %d: %s of %d bytes: %v, want %s", version, one.field, len(bad), err, want)
				}
			}
		}
	}
}

// TestTexts_KeysAndValuesOfMaps: so are the keys and values of a map.
func TestTexts_KeysAndValuesOfMaps(t *testing.T) {
	tags := func(k, v string) Body {
		return &StartTaskFinishBody{ID: "t", Conversation: Conversation{ID: "c", Tags: map[string]string{k: v}}}
	}
	wide := func(n int) string { return strings.Repeat("字", n) }
	for _, c := range []struct {
		version    int
		key, value string
		want       string
	}{
		{4, wide(MaxName), wide(MaxParagraph), ""},
		{4, wide(MaxName + 1), "", "tags has a key that is empty, too long or not UTF-8"},
		{4, "a", wide(MaxParagraph + 1), "tags has a value longer than 65536 characters or not UTF-8"},
		{3, wide(85), wide(21845), ""},
		{3, wide(86), "", "tags has a key that is empty, too long or not UTF-8"},
		{3, "a", wide(21846), "tags has a value longer than 65536 bytes or not UTF-8"},
	} {
		got := ""
		if err := validate(tags(c.key, c.value), c.version); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("version %d, %d and %d bytes: %q, want %q", c.version, len(c.key), len(c.value), got, c.want)
		}
	}
}

// TestApply_TextsByTheClustersVersion: Apply and View.Validate follow the cluster's version, and a
// log that raises it gives the same state on a node that restarts in the middle.
func TestApply_TextsByTheClustersVersion(t *testing.T) {
	f := newFixture(t).open()
	wide := func(n int) *SettingsPutBody {
		return &SettingsPutBody{Values: SettingsValues{Language: ptr(strings.Repeat("字", n))}}
	}
	refused := func(n int, want string) {
		t.Helper()
		cmd := f.command("ada", wide(n))
		checked := f.store.View().Validate(cmd)
		if _, err := f.apply(cmd); err == nil || err.Error() != want || checked == nil || checked.Error() != want {
			t.Fatalf("%d characters: Apply says %v, Validate %v, want %s", n, err, checked, want)
		}
	}
	f.do("", &ProtocolRaiseBody{Version: VersionHistory})
	f.do("ada", wide(1365))
	refused(1366, "language is longer than 4096 bytes")
	f.store = restored(t, f.store)
	f.do("", &ProtocolRaiseBody{Version: VersionCharacters})
	f.do("ada", wide(MaxLine))
	refused(MaxLine+1, "language: String should have at most 4096 characters")
	sameState(t, f.store, restored(t, f.store))
}

// TestCustomSecretPath_OfAnEarlierName: a name that is valid below VersionCharacters keeps the path
// that earlier programs gave it. Every path fits the secret store's bound of 512 bytes.
func TestCustomSecretPath_OfAnEarlierName(t *testing.T) {
	user := strings.Repeat("u", maxUserID)
	for _, name := range []string{
		"A", strings.Repeat("a", 255), strings.Repeat("a", 254) + "é", strings.Repeat("a", 256),
		strings.Repeat("a", 255) + "é", strings.Repeat("字", MaxName),
	} {
		body := &SettingsPutBody{CustomSecrets: []CustomSecret{{Name: name, Ref: SecretRef{Path: "p", Version: 1}}}}
		earlier := validate(body, VersionHistory) == nil
		path := CustomSecretPath(user, name)
		plain := path == "users/"+user+"/custom/"+base64.RawURLEncoding.EncodeToString([]byte(name))
		if plain != earlier || len(path) > 512 {
			t.Errorf("a name of %d bytes, valid below version 4: %t, has the path %s", len(name), earlier, path)
		}
	}
}
