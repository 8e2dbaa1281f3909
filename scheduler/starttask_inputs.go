package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// inputs are everything the call that creates a conversation is made of. They
// hold secret values and live for that one step.
type inputs struct {
	task     *fsm.StartTask
	place    *place
	settings *fsm.Settings

	key          string
	llmAPIKey    string
	searchAPIKey string
	mcp          json.RawMessage
	// tokens are the git providers' by type, custom the user's own secrets,
	// request what came with the request.
	providers []*fsm.Provider
	tokens    map[fsm.ProviderType]string
	custom    map[string]string
	requested requestSecrets

	// values are all of them, to be scrubbed from what users are shown.
	values []string
}

// requestSecrets is the document of StartTask.Secrets.
type requestSecrets struct {
	Secrets   map[string]string `json:"secrets"`
	MCPConfig json.RawMessage   `json:"mcp_config"`
	Plugins   json.RawMessage   `json:"plugins"`
}

// inputs reads settings from the view and every secret from the store. A
// version that is gone has just been replaced: the next attempt sees the new
// one.
func (r *StartTasks) inputs(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) (*inputs, outcome) {
	in := &inputs{
		task: t, place: p, settings: v.Settings(t.UserID), providers: v.Providers(t.UserID),
		tokens: map[fsm.ProviderType]string{}, custom: map[string]string{},
	}
	if in.settings == nil {
		in.settings = &fsm.Settings{UserID: t.UserID, Values: fsm.SettingsValues{EnableDefaultCondenser: true}}
	}
	r.step(ctx, t, "read secrets")
	if err := r.read(ctx, in, v, p.sandbox); err != nil {
		return nil, outcome{err: err}
	}
	return in, outcome{}
}

func (r *StartTasks) read(ctx context.Context, in *inputs, v *fsm.View, s *fsm.Sandbox) error {
	var err error
	get := func(ref fsm.SecretRef, member string) string {
		if err != nil || ref.IsZero() {
			return ""
		}
		var data map[string]string
		if data, err = r.secrets.Read(ctx, ref); err != nil {
			err = fmt.Errorf("reading %s: %w", ref.Path, err)
			return ""
		}
		in.values = append(in.values, data[member])
		return data[member]
	}
	in.key = get(s.KeyRef, secretKeyMember)
	in.llmAPIKey = get(in.settings.LLMAPIKey, "value")
	in.searchAPIKey = get(in.settings.SearchAPIKey, "value")
	if doc := get(in.settings.MCPConfig, "json"); doc != "" {
		in.mcp = json.RawMessage(doc)
	}
	for _, p := range in.providers {
		if token := get(p.Ref, "token"); token != "" {
			in.tokens[p.Type] = token
		}
	}
	for _, c := range v.CustomSecrets(in.task.UserID) {
		in.custom[c.Name] = get(c.Ref, "value")
	}
	doc := get(in.task.Secrets, "json")
	if err != nil {
		return err
	}
	if doc != "" {
		if json.Unmarshal([]byte(doc), &in.requested) != nil {
			return fmt.Errorf("the entry %s is not the document expected", in.task.Secrets.Path)
		}
		if string(in.requested.Plugins) == "null" {
			in.requested.Plugins = nil
		}
		for _, value := range in.requested.Secrets {
			in.values = append(in.values, value)
		}
	}
	in.values = append(in.values, nestedTexts(in.mcp)...)
	in.values = append(in.values, nestedTexts(in.requested.MCPConfig)...)
	in.values = append(in.values, nestedTexts(in.requested.Plugins)...)
	return nil
}

// nestedTexts gives every string inside a JSON document.
func nestedTexts(doc json.RawMessage) []string {
	var v any
	if len(doc) == 0 || json.Unmarshal(doc, &v) != nil {
		return nil
	}
	var out []string
	var walk func(any)
	walk = func(v any) {
		switch t := v.(type) {
		case string:
			out = append(out, t)
		case []any:
			for _, e := range t {
				walk(e)
			}
		case map[string]any:
			for _, e := range t {
				walk(e)
			}
		}
	}
	walk(v)
	return out
}

// minScrub is the shortest value taken for a secret: shorter ones would blank
// ordinary words.
const minScrub = 6

// scrub masks every secret value in a text that is about to be shown.
func (in *inputs) scrub(s string) string {
	values := slices.Clone(in.values)
	// Longest first: one value may be part of another.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	for _, v := range values {
		if len(v) >= minScrub {
			s = strings.ReplaceAll(s, v, "**********")
		}
	}
	return s
}
