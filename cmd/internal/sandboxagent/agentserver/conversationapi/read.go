package conversationapi

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

// readMessage reads a SendMessage (API.md, "Messages").
func readMessage(o decode.Object) agent.Message {
	run := o.Boolean("run")
	out := agent.Message{
		Role:    wire.TextOr(o.Enum("role", []string{"user", "system", "assistant", "tool"}), "user"),
		Run:     run != nil && *run,
		Content: []agent.ContentBlock{},
	}
	if id := o.UUID("id"); id != nil {
		out.ID = decode.Dashed(*id)
	}
	switch content := o.Value("content").(type) {
	case nil:
	case string:
		out.Content = append(out.Content, agent.ContentBlock{Type: "text", Text: content})
	default:
		for _, b := range o.Elements("content", false) {
			out.Content = append(out.Content, readBlock(b))
		}
	}
	return out
}

func readBlock(o decode.Object) agent.ContentBlock {
	cache := o.Boolean("cache_prompt")
	out := agent.ContentBlock{
		Type:        wire.TextOr(o.Enum("type", []string{"text", "image"}), "text"),
		CachePrompt: cache != nil && *cache,
	}
	if out.Type == "text" {
		if out.Text = wire.TextOr(o.Text("text", wire.MaxText), ""); o.Value("text") == nil {
			wire.Missing(o, "text")
		}
		return out
	}
	if o.Value("image_urls") == nil {
		wire.Missing(o, "image_urls")
	}
	out.ImageURLs = o.Texts("image_urls", wire.MaxText)
	return out
}

func readTags(o decode.Object) map[string]string {
	out := map[string]string{}
	tags, _ := o.Object("tags")
	for _, k := range decode.SortedKeys(tags.Members) {
		v := tags.Text(k, wire.MaxText)
		switch {
		case !isTagKey(k):
			o.Problems.Value(decode.At(tags.Loc, decode.Truncate(k, 64), "[key]"),
				"a tag's name is lower-case letters and digits", nil)
		case v == nil:
		case utf8.RuneCountInString(*v) > wire.MaxName:
			tags.Masked().Rule(k, "a tag's value has at most 256 characters")
		default:
			out[k] = *v
		}
	}
	return out
}

func isTagKey(k string) bool {
	for _, r := range k {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return k != "" && len(k) <= 256
}

// readSecretNames validates the map of secrets and returns its names.
func readSecretNames(o decode.Object) []string {
	secrets, _ := o.Masked().Object("secrets")
	names := []string{}
	for _, name := range decode.SortedKeys(secrets.Members) {
		if _, plain := secrets.Value(name).(string); plain {
			names = append(names, name)
			continue
		}
		if !secrets.NotNull(name, decode.KindObject) {
			continue
		}
		one, ok := secrets.Object(name)
		if !ok {
			continue
		}
		kind, _ := one.Value("kind").(string)
		switch kind {
		case "", "StaticSecret":
		case "LookupSecret":
			one.Rule("kind", "this server fetches no secrets: resolve the LookupSecret and send a StaticSecret")
		default:
			one.Rule("kind", "kind should be StaticSecret")
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// readWorkspace reads the required workspace.
func readWorkspace(o decode.Object) agent.Workspace {
	if o.Value("workspace") == nil {
		wire.Missing(o, "workspace")
		return agent.Workspace{}
	}
	w, ok := o.Object("workspace")
	if !ok {
		return agent.Workspace{}
	}
	out := agent.Workspace{Kind: wire.TextOr(w.Enum("kind", []string{"LocalWorkspace"}), "LocalWorkspace")}
	dir := w.Text("working_dir", wire.MaxText)
	switch {
	case dir == nil && w.Value("working_dir") == nil:
		wire.Missing(w, "working_dir")
	case dir == nil:
	case !path.IsAbs(*dir) || strings.ContainsRune(*dir, 0):
		w.Rule("working_dir", "working_dir must be an absolute path")
	default:
		out.WorkingDir = path.Clean(*dir)
	}
	return out
}

// redactURL removes the user info and the query of a URL, which may hold credentials. It drops an
// invalid URL.
func redactURL(s *string) *string {
	if s == nil || *s == "" {
		return nil
	}
	u, err := url.Parse(*s)
	if err != nil {
		return nil
	}
	clean := fmt.Sprintf("%s://%s%s", u.Scheme, u.Host, u.Path)
	return &clean
}
