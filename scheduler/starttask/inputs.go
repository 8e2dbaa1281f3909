package starttask

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// inputs is all that the call that creates a conversation is made of. It holds secret values and
// lives for that one step.
type inputs struct {
	task     *fsm.StartTask
	place    *place
	settings *fsm.Settings

	key string
	// gateway is the model gateway's URL for the sandbox. Where it is "" the sandbox gets llmAPIKey.
	gateway      string
	llmAPIKey    string
	searchAPIKey string
	mcp          json.RawMessage
	// tokens are the git providers' by type, custom the user's own secrets, requested those of
	// the request.
	providers []*fsm.Provider
	tokens    map[fsm.ProviderType]string
	custom    map[string]string
	requested fsm.StartSecrets
	project   project
	// said is what the operator says of the model.
	said agent.ModelSettings
	// agent is the agent that the conversation gets, nil for the built-in one.
	agent *acpAgent

	// values has every secret value, to be masked in what users see.
	values []string
}

// inputs reads settings from the view and every secret from the store. A version that is gone was
// just replaced: the next attempt sees the new one.
func (r *Runner) inputs(ctx context.Context, v *fsm.View, t *fsm.StartTask, p *place) (*inputs, error) {
	in := &inputs{
		task: t, place: p, settings: v.Settings(t.UserID), providers: v.Providers(t.UserID),
		tokens: map[fsm.ProviderType]string{}, custom: map[string]string{}, gateway: r.gateway(v),
	}
	if in.settings == nil {
		in.settings = &fsm.Settings{UserID: t.UserID, Values: fsm.SettingsValues{EnableDefaultCondenser: true}}
	}
	in.said = agent.ModelSettings(v.Installation().LLM.SettingsOf(in.model()))
	r.step(ctx, t, "read secrets")
	if err := r.read(ctx, in, v, p.sandbox); err != nil {
		return nil, err
	}
	return in, nil
}

func (r *Runner) read(ctx context.Context, in *inputs, v *fsm.View, sb *fsm.Sandbox) error {
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
	in.key = get(sb.KeyRef, fsm.MemberKey)
	if in.gateway == "" {
		ref, _ := v.KeyOf(in.task.UserID, in.endpoint(), preset.BaseURL)
		in.llmAPIKey = get(ref, "value")
	}
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
	}
	in.values = append(in.values, nestedTexts(in.mcp)...)
	in.values = append(in.values, nestedTexts(json.RawMessage(doc))...)
	return nil
}

// nestedTexts returns every string inside a JSON document.
func nestedTexts(doc json.RawMessage) []string {
	var v any
	if len(doc) == 0 || json.Unmarshal(doc, &v) != nil {
		return nil
	}
	return textsIn(v)
}

// textsIn returns every string inside a decoded JSON value.
func textsIn(v any) (out []string) {
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

// minScrub is the shortest value to mask, in bytes: shorter ones would mask ordinary words.
const minScrub = 6

// scrub masks every secret value in a text for users.
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
