package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// newHexID returns a random UUID as 32 hex characters, V1's format.
func newHexID() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }

// startInput is a decoded start of a conversation: the redacted request, and the secrets to store.
type startInput struct {
	request fsm.StartRequest
	secrets fsm.StartSecrets
	// llmProfile is the id of the LLM profile that the conversation uses, "" for the settings.
	llmProfile string
	// agentProfile is the agent profile that the request is filled in from, nil for none.
	agentProfile *fsm.LaunchedProfile
	// conversation is the requested id, "" for a new one.
	conversation string
	v0ID         string
	join         bool
}

// handleStart handles POST /api/v1/app-conversations.
func (s *Server) handleStart(c *call) (response.Response, error) {
	in := readStart(c.Object())
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		if err := c.useAgentProfile(&in); err != nil {
			return nil, request.SecretWrites{}, err
		}
		if err := c.checkStart(in.request); err != nil {
			return nil, request.SecretWrites{}, err
		}
		return in.command(c.Caller.User)
	}, func(res fsm.Result) (response.Response, error) {
		if res.StartTask == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.StartTaskCreate)
		}
		return response.OK(newStartTaskBody(nil, res.StartTask, s.linksFor(c.Request)))
	})
}

// checkStart refuses an unknown parent and a start over a limit before secrets are stored. Apply
// checks again.
func (c *call) checkStart(q fsm.StartRequest) error {
	if id := q.ParentConversationID; id != nil {
		v, err := c.ViewWith(cluster.Linearizable)
		if err != nil {
			return err
		}
		if v.Conversation(c.Caller.User, *id) == nil {
			return fsm.Errorf(fsm.CodeNotFound, "Parent conversation not found: %s", *id)
		}
	}
	v, err := c.server.cluster.View(c.Ctx(), cluster.Stale)
	if err != nil {
		return fmt.Errorf("reading the limits: %w", err)
	}
	if q.AgentType == fsm.AgentTypePlan && !v.Active(fsm.VersionPlans) {
		return fsm.NeedsVersion("a planning agent", fsm.VersionPlans, v.ProtocolVersion())
	}
	return c.admitted(v, func(v *fsm.View) *fsm.Error {
		return v.StartAdmission(c.Caller.User, &q, c.Now)
	})
}

// command builds the command and lists the secrets to store.
func (in startInput) command(user string) (*fsm.StartTaskCreateBody, request.SecretWrites, error) {
	body := &fsm.StartTaskCreateBody{
		ID: newHexID(), ConversationID: in.conversation, V0ID: in.v0ID, Join: in.join, Request: in.request,
		LLMProfile: in.llmProfile, AgentProfile: in.agentProfile,
	}
	if body.ConversationID == "" {
		body.ConversationID = newHexID()
	}
	var writes request.SecretWrites
	if err := stageSecrets(in.secrets, &writes, user, body.ID, &body.Secrets); err != nil {
		return nil, request.SecretWrites{}, err
	}
	return body, writes, nil
}

func readStart(o decode.Object) startInput {
	q := fsm.StartRequest{
		SandboxID:             o.Text("sandbox_id", fsm.MaxName),
		InitialMessage:        readMessage(o, "initial_message"),
		SystemMessageSuffix:   o.Text("system_message_suffix", fsm.MaxParagraph),
		LLMModel:              o.Text("llm_model", fsm.MaxLine),
		AgentProfileID:        o.Text("agent_profile_id", fsm.MaxName),
		SelectedRepository:    o.Repository("selected_repository", fsm.MaxPath),
		SelectedBranch:        o.Address("selected_branch", fsm.MaxPath),
		GitProvider:           (*fsm.ProviderType)(o.Enum("git_provider", git.Providers())),
		SuggestedTask:         git.ReadSuggestedTask(o),
		Title:                 o.Title("title", fsm.MaxLine),
		Trigger:               o.Enum("trigger", triggers()),
		PRNumber:              readIntegers(o, "pr_number"),
		ParentConversationID:  o.UUID("parent_conversation_id"),
		AgentType:             fsm.AgentTypeDefault,
		Public:                o.Boolean("public"),
		ObservabilityTags:     o.Texts("observability_tags", fsm.MaxLine),
		ObservabilitySpanName: o.Text("observability_span_name", fsm.MaxLine),
		ACPServer:             readAgentID(o, "acp_server"),
	}
	if o.Value("acp_command") != nil {
		o.Rule("acp_command",
			"a start takes no command: store acp_command in the settings and send acp_server \""+fsm.AgentCustom+"\"")
	}
	agentTypes := []string{fsm.AgentTypeDefault, fsm.AgentTypePlan}
	if f := decode.NotOneOf(agentTypes); o.NotNull("agent_type", f.Kind()) {
		if t := o.Enum("agent_type", agentTypes); t != nil {
			q.AgentType = *t
		}
	}
	in := startInput{conversation: decode.OrZero(o.UUID("conversation_id"))}
	if in.conversation != "" {
		id := decode.Dashed(in.conversation)
		q.ConversationID = &id
	}
	q.Plugins, in.secrets.Plugins = readPlugins(o)
	q.Processors = readProcessors(o)
	in.secrets.Metadata = readScalars(o.Masked(), "observability_metadata")
	q.ObservabilityMetadata = maskMembers(in.secrets.Metadata)
	q.Secrets, in.secrets.Secrets = readStartSecrets(o)
	if q.SuggestedTask != nil && q.InitialMessage != nil {
		o.Problems.Value(o.Loc, "initial_message and suggested_task can't be given together", decode.Echo(o.Members, true))
	}
	if q.SuggestedTask != nil {
		git.ApplyTask(&q)
	}
	if decode.OrZero(q.SelectedBranch) != "" && decode.OrZero(q.SelectedRepository) == "" &&
		q.ParentConversationID == nil {
		o.Masked().Rule("selected_branch", "a branch needs a repository: send selected_repository, too")
	}
	in.request = q
	return in
}

func triggers() []string {
	return []string{"resolver", fsm.TriggerGUI, fsm.TriggerSuggestedTask, fsm.TriggerAPI, "slack", fsm.TriggerMicroagent,
		"jira", "jira_dc", "linear", "bitbucket", "automation"}
}

// readMessage reads a SendMessage.
func readMessage(o decode.Object, name string) *fsm.Message {
	m, ok := o.Object(name)
	if !ok {
		return nil
	}
	msg := &fsm.Message{Role: "user", Content: []fsm.ContentBlock{}, Run: m.BooleanOr("run", false)}
	roles := []string{"user", "system", "assistant", "tool"}
	if f := decode.NotOneOf(roles); m.NotNull("role", f.Kind()) {
		if role := m.Enum("role", roles); role != nil {
			msg.Role = *role
		}
	}
	for _, e := range m.Elements("content", false) {
		msg.Content = append(msg.Content, readBlock(e))
	}
	return msg
}

// readBlock reads a text or image block. Without a type, the members decide. An image URL may hold
// the image itself; the body's size and fsm.MaxCommandBytes limit it.
func readBlock(o decode.Object) fsm.ContentBlock {
	block := fsm.ContentBlock{Type: fsm.BlockText, CachePrompt: o.BooleanOr("cache_prompt", false)}
	if o.Has("type") {
		types := []string{fsm.BlockText, fsm.BlockImage}
		f := decode.NotOneOf(types)
		o.NotNull("type", f.Kind())
		block.Type = decode.OrZero(o.Enum("type", types))
	} else if o.Has("image_urls") {
		block.Type = fsm.BlockImage
	}
	switch block.Type {
	case fsm.BlockText:
		o.Strict("cache_prompt", "type", "text")
		block.Text = o.MustText("text", fsm.MaxText)
	case fsm.BlockImage:
		if o.Require("image_urls") && o.NotNull("image_urls", decode.KindList) {
			block.ImageURLs = wire.OrEmpty(o.Texts("image_urls", decode.MaxAnyText))
		}
	}
	return block
}

func readIntegers(o decode.Object, name string) []int64 {
	out := []int64{}
	if !o.NotNull(name, decode.KindList) {
		return out
	}
	items, ok := o.List(name)
	if !ok {
		return out
	}
	for _, i := range items.Indexes() {
		if !items.NotNull(i, decode.KindInt) {
			continue
		}
		if n := items.Integer(i); n != nil {
			out = append(out, *n)
		}
	}
	return out
}

// readScalars reads a map of strings, numbers, booleans and nulls.
func readScalars(o decode.Object, name string) map[string]any {
	dict, ok := o.Dict(name)
	if !ok {
		return nil
	}
	for _, k := range decode.SortedKeys(dict.Members) {
		switch dict.Members[k].(type) {
		case string, bool, json.Number, nil:
		default:
			dict.Fail(k, dict.Members[k], decode.KindString.Fault())
		}
	}
	if hasLongNumber(dict.Members) {
		o.Rule(name, longNumber)
	}
	return dict.Members
}

// maxNumber limits the text of a number that is stored as it was sent, in characters.
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

// titleProcessor is the kind of processor that every start has: the agent server makes a title.
const titleProcessor = "SetTitleCallbackProcessor"

// readProcessors reads objects with a kind. Only titleProcessor is honoured, which has no members.
func readProcessors(o decode.Object) []json.RawMessage {
	items, ok := o.Masked().List("processors")
	if !ok {
		return nil
	}
	read := []json.RawMessage{}
	for _, i := range items.Indexes() {
		if !items.NotNull(i, decode.KindObject) {
			continue
		}
		one, ok := items.Object(i)
		if !ok {
			continue
		}
		if kind := one.MustText("kind", fsm.MaxName); kind != "" && kind != titleProcessor {
			one.Rule("kind", "nothing would call this processor: leave it out and read the conversation's events; "+
				titleProcessor+" alone is served, and every start has it")
		}
		read = append(read, json.RawMessage(`{"kind":"`+titleProcessor+`"}`))
	}
	return read
}

// readPlugins returns the plugins twice: redacted and in full.
func readPlugins(o decode.Object) (redacted, full []fsm.PluginSource) {
	if o.Value("plugins") == nil {
		return nil, nil
	}
	redacted, full = []fsm.PluginSource{}, []fsm.PluginSource{}
	for _, e := range o.Masked().Elements("plugins", false) {
		p := fsm.PluginSource{
			Source:   e.MustText("source", fsm.MaxLine),
			Ref:      e.Text("ref", fsm.MaxPath),
			RepoPath: e.Text("repo_path", fsm.MaxPath),
		}
		if params, ok := e.Dict("parameters"); ok {
			p.Parameters = params.Members
			if hasLongNumber(params.Members) {
				e.Rule("parameters", longNumber)
			}
		}
		full = append(full, p)
		p.Source, p.Parameters = decode.Redact(p.Source), maskMembers(p.Parameters)
		redacted = append(redacted, p)
	}
	return redacted, full
}

// readStartSecrets returns the conversation's secrets twice: redacted and in full.
func readStartSecrets(o decode.Object) (redacted *map[string]string, full map[string]string) {
	dict, ok := o.Masked().Dict("secrets")
	if !ok {
		return nil, nil
	}
	full = dict.TextMap(fsm.MaxName, fsm.MaxParagraph)
	shown := make(map[string]string, len(full))
	for _, name := range slices.Sorted(maps.Keys(full)) {
		if isReservedSecret(name) {
			dict.Problems.Value(decode.At(dict.Loc, name, "[key]"), "the secret name '"+name+"' is reserved", name)
		}
		shown[name] = decode.Masked
	}
	return &shown, full
}

// isReservedSecret reports whether the sandbox's environment uses the name
// (PROTOCOL.md, "Conversation secrets").
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

// hasSecrets reports whether a start has secrets to store.
func hasSecrets(d *fsm.StartSecrets) bool {
	return len(d.Secrets) > 0 || d.MCPConfig != nil || len(d.Plugins) > 0 || len(d.Metadata) > 0
}

// stageSecrets adds the document to the secrets to write.
func stageSecrets(d fsm.StartSecrets, w *request.SecretWrites, user, task string, ref *fsm.SecretRef) error {
	if !hasSecrets(&d) {
		return nil
	}
	d.Secrets = wire.OrEmptyMap(d.Secrets)
	text, err := response.Encode(&d)
	if err != nil {
		return fmt.Errorf("encoding the secrets of a start task: %w", err)
	}
	w.Add(fsm.StartTaskPath(user, task), "json", string(text), ref)
	w.Alone()
	return nil
}
