package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// The types of a message's content blocks.
const (
	blockText  = "text"
	blockImage = "image"
)

// The values of a conversation's trigger.
const (
	triggerSuggestedTask = "suggested_task"
	triggerMicroagent    = "microagent_management"
	triggerAPI           = "openhands_api"
	triggerGUI           = "gui"
)

// newHexID makes a random id as V1 writes them.
func newHexID() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }

// startInput is a decoded conversation start: what may be told, and what has to
// go to the secret store.
type startInput struct {
	request fsm.StartRequest
	secrets startSecrets
	// conversation is the wished id, "" for any.
	conversation string
	v0ID         string
	join         bool
}

// handleStart handles POST /api/v1/app-conversations.
func (s *Server) handleStart(c *call) (answer, error) {
	in := readStart(c.object())
	if err := c.check(); err != nil {
		return answer{}, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		if err := c.checkStart(in.request); err != nil {
			return nil, secretWrites{}, err
		}
		return in.command(c.who.user)
	}, func(res fsm.Result) (answer, error) {
		if res.StartTask == nil {
			return answer{}, errEmptyResult(fsm.StartTaskCreate)
		}
		return ok(newStartTaskBody(res.StartTask, s.linksFor(c.r)))
	})
}

// checkStart refuses an unknown parent, and a start over a limit, before secrets
// are stored for nothing. Apply has the last word.
func (c *call) checkStart(q fsm.StartRequest) error {
	if id := q.ParentConversationID; id != nil {
		v, err := c.viewWith(cluster.Linearizable)
		if err != nil {
			return err
		}
		if v.Conversation(c.who.user, *id) == nil {
			return fsm.Errorf(fsm.CodeNotFound, "Parent conversation not found: %s", *id)
		}
	}
	v, err := c.server.cluster.View(c.ctx(), cluster.Stale)
	if err != nil {
		return fmt.Errorf("reading the limits: %w", err)
	}
	return c.admitted(v, func(v *fsm.View) *fsm.Error {
		return v.StartAdmission(c.who.user, &q, c.now)
	})
}

// command makes the start's command and says which secrets it needs stored.
func (in startInput) command(user string) (fsm.Body, secretWrites, error) {
	body := &fsm.StartTaskCreateBody{
		ID: newHexID(), ConversationID: in.conversation, Join: in.join, Request: in.request,
	}
	// A longer one is found all the same: the conversation's id is derived from it.
	if len(in.v0ID) <= maxStoredV0ID {
		body.V0ID = in.v0ID
	}
	if body.ConversationID == "" {
		body.ConversationID = newHexID()
	}
	var writes secretWrites
	if err := in.secrets.stage(&writes, user, body.ID, &body.Secrets); err != nil {
		return nil, secretWrites{}, err
	}
	return body, writes, nil
}

func readStart(o object) startInput {
	q := fsm.StartRequest{
		SandboxID:             o.text("sandbox_id", maxNameText),
		InitialMessage:        readMessage(o, "initial_message"),
		SystemMessageSuffix:   o.text("system_message_suffix", maxText),
		LLMModel:              o.text("llm_model", maxSetting),
		AgentProfileID:        o.text("agent_profile_id", maxNameText),
		SelectedRepository:    o.text("selected_repository", maxSetting),
		SelectedBranch:        o.text("selected_branch", maxSetting),
		GitProvider:           (*fsm.ProviderType)(o.enum("git_provider", providerNames())),
		SuggestedTask:         readSuggestedTask(o),
		Title:                 o.text("title", maxSetting),
		Trigger:               o.enum("trigger", triggers()),
		PRNumber:              readIntegers(o, "pr_number"),
		ParentConversationID:  o.uuid("parent_conversation_id"),
		AgentType:             "default",
		Public:                o.boolean("public"),
		ObservabilityMetadata: readScalars(o, "observability_metadata"),
		ObservabilityTags:     o.texts("observability_tags", maxSetting),
		ObservabilitySpanName: o.text("observability_span_name", maxSetting),
		Processors:            readProcessors(o),
	}
	agentTypes := []string{"default", "plan"}
	if f := enumFault(agentTypes); o.notNull("agent_type", kind{f.typ, f.msg}) {
		if t := o.enum("agent_type", agentTypes); t != nil {
			q.AgentType = *t
		}
	}
	in := startInput{conversation: deref(o.uuid("conversation_id"))}
	if in.conversation != "" {
		id := dashed(in.conversation)
		q.ConversationID = &id
	}
	q.Plugins, in.secrets.Plugins = readPlugins(o)
	q.Secrets, in.secrets.Secrets = readStartSecrets(o)
	if q.SuggestedTask != nil && q.InitialMessage != nil {
		o.errs.value(o.loc, "initial_message and suggested_task can't be given together", echo(o.m, true))
	}
	if q.SuggestedTask != nil {
		applySuggestedTask(&q)
	}
	in.request = q
	return in
}

func triggers() []string {
	return []string{"resolver", triggerGUI, triggerSuggestedTask, triggerAPI, "slack", triggerMicroagent,
		"jira", "jira_dc", "linear", "bitbucket", "automation"}
}

// readMessage reads a SendMessage.
func readMessage(o object, name string) *fsm.Message {
	m, ok := o.object(name)
	if !ok {
		return nil
	}
	msg := &fsm.Message{Role: "user", Content: []fsm.ContentBlock{}, Run: m.booleanOr("run", false)}
	roles := []string{"user", "system", "assistant", "tool"}
	if f := enumFault(roles); m.notNull("role", kind{f.typ, f.msg}) {
		if role := m.enum("role", roles); role != nil {
			msg.Role = *role
		}
	}
	for _, e := range m.elements("content", false) {
		msg.Content = append(msg.Content, readBlock(e, maxPictures))
	}
	return msg
}

// readBlock reads a text or an image block. One without a type is what its
// members say. An image's URL, which may hold the image itself, has at most
// picture characters.
func readBlock(o object, picture int) fsm.ContentBlock {
	block := fsm.ContentBlock{Type: blockText, CachePrompt: o.booleanOr("cache_prompt", false)}
	if o.has("type") {
		types := []string{blockText, blockImage}
		f := enumFault(types)
		o.notNull("type", kind{f.typ, f.msg})
		block.Type = deref(o.enum("type", types))
	} else if o.has("image_urls") {
		block.Type = blockImage
	}
	switch block.Type {
	case blockText:
		o.strict("cache_prompt", "type", "text")
		block.Text = o.mustText("text", maxLongText)
	case blockImage:
		if o.require("image_urls") && o.notNull("image_urls", kindList) {
			block.ImageURLs = orEmpty(o.texts("image_urls", picture))
		}
	}
	return block
}

func readIntegers(o object, name string) []int64 {
	out := []int64{}
	if !o.notNull(name, kindList) {
		return out
	}
	items, ok := o.list(name)
	if !ok {
		return out
	}
	for _, i := range items.indexes() {
		if !items.notNull(i, kindInt) {
			continue
		}
		if n := items.integer(i); n != nil {
			out = append(out, *n)
		}
	}
	return out
}

// readScalars reads a map of texts, numbers and booleans.
func readScalars(o object, name string) map[string]any {
	dict, ok := o.dict(name)
	if !ok {
		return nil
	}
	for _, k := range sortedKeys(dict.m) {
		switch dict.m[k].(type) {
		case string, bool, json.Number, nil:
		default:
			dict.fail(k, dict.m[k], kindString.fault())
		}
	}
	if hasLongNumber(dict.m) {
		o.rule(name, longNumber)
	}
	return dict.m
}

// maxNumber bounds the text of a number that is kept as it was written.
const (
	maxNumber  = 100
	longNumber = "a number has at most 100 characters here"
)

// hasLongNumber reports whether a decoded value holds a number of more than
// maxNumber characters.
func hasLongNumber(v any) bool {
	switch v := v.(type) {
	case json.Number:
		return len(v) > maxNumber
	case []any:
		return slices.ContainsFunc(v, hasLongNumber)
	case map[string]any:
		for _, one := range v {
			if hasLongNumber(one) {
				return true
			}
		}
	}
	return false
}

// processorKind is what the kind of a processor looks like; which of them the
// agent side knows is not ours to say.
var processorKind = regexp.MustCompile(`^[A-Za-z0-9]{1,64}CallbackProcessor$`)

// readProcessors reads objects tagged by kind. Members that look like secrets
// are masked, because the whole request is echoed.
func readProcessors(o object) []json.RawMessage {
	items, ok := o.masked().list("processors")
	if !ok {
		return nil
	}
	out := []json.RawMessage{}
	for _, i := range items.indexes() {
		if !items.notNull(i, kindObject) {
			continue
		}
		one, ok := items.object(i)
		if !ok {
			continue
		}
		kind := one.mustText("kind", maxNameText)
		if kind != "" && !processorKind.MatchString(kind) {
			one.rule("kind", "unknown kind of processor")
		}
		text, err := json.Marshal(maskMembers(one.m))
		if err != nil {
			one.rule("kind", "this processor can't be stored")
			continue
		}
		out = append(out, text)
	}
	return out
}

// readPlugins gives the plugins as they are told (masked) and as they are.
func readPlugins(o object) (told, real []fsm.PluginSource) {
	if o.value("plugins") == nil {
		return nil, nil
	}
	told, real = []fsm.PluginSource{}, []fsm.PluginSource{}
	for _, e := range o.masked().elements("plugins", false) {
		p := fsm.PluginSource{Source: e.mustText("source", maxSetting), Ref: e.text("ref", maxSetting), RepoPath: e.text("repo_path", maxSetting)}
		if params, ok := e.dict("parameters"); ok {
			p.Parameters = params.m
			if hasLongNumber(params.m) {
				e.rule("parameters", longNumber)
			}
		}
		real = append(real, p)
		p.Source = maskSource(p.Source)
		if p.Parameters != nil {
			p.Parameters = maskMembers(p.Parameters)
		}
		told = append(told, p)
	}
	return told, real
}

// readStartSecrets gives the conversation's secrets as they are told (masked)
// and as they are.
func readStartSecrets(o object) (told *map[string]string, real map[string]string) {
	dict, ok := o.masked().dict("secrets")
	if !ok {
		return nil, nil
	}
	real = dict.textMap(maxText)
	shown := make(map[string]string, len(real))
	for _, name := range slices.Sorted(maps.Keys(real)) {
		if isReservedSecret(name) {
			dict.errs.value(at(dict.loc, name, "[key]"), "the secret name '"+name+"' is reserved", name)
		}
		shown[name] = masked
	}
	return &shown, real
}

// isReservedSecret reports whether the sandbox's own environment uses the name
// (api-contract.md C.2).
func isReservedSecret(name string) bool {
	if strings.HasPrefix(name, "LLM_") || strings.HasPrefix(name, "OH_") {
		return true
	}
	switch name {
	case "OPENVSCODE_SERVER_ROOT", "LOG_JSON", "PYTHONUNBUFFERED", "ENV_LOG_LEVEL", "WORKER_1", "WORKER_2":
		return true
	}
	return false
}
