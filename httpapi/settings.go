package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"unicode/utf8"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// errSettingsNotFound is the response of GET /api/settings before the first POST.
func errSettingsNotFound() *response.HTTPError {
	return &response.HTTPError{Status: http.StatusNotFound, Text: "Settings not found"}
}

// settingsInput is a decoded POST /api/settings.
type settingsInput struct {
	values fsm.SettingsValues
	keys   map[string]*string // nil for a key that was not sent
	mcp    *fsm.MCPConfig
	tokens []git.Token
	custom []customSecretInput
	// set has the names of what changes; nil is a request for all settings.
	set []string
}

type customSecretInput struct {
	name, secret, description string
}

// handleSettingsPut handles POST /api/settings.
func (s *Server) handleSettingsPut(c *call) (response.Response, error) {
	in := readSettings(c.Object())
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return s.prepareSettings(c, in)
	}, func(fsm.Result) (response.Response, error) {
		return response.OK(struct{}{})
	})
}

// prepareSettings builds the command. It verifies git tokens as POST /api/add-git-providers does,
// at the stored host if the request has none. It refuses what Apply would refuse before any secret
// is written.
func (s *Server) prepareSettings(c *call, in settingsInput) (fsm.Body, request.SecretWrites, error) {
	body, writes, err := in.command(c.Caller.User)
	if err != nil || len(in.tokens) == 0 && len(in.custom) == 0 && !in.values.ChoosesAgent() {
		return body, writes, err
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return nil, request.SecretWrites{}, err
	}
	if over := v.SettingsAdmission(c.Caller.User, body, c.Now); over != nil {
		return nil, request.SecretWrites{}, over
	}
	if len(in.tokens) == 0 {
		return body, writes, nil
	}
	stored := v.Providers(c.Caller.User)
	return body, writes, s.sharedNow().git.Tokens(c.Ctx(), stored, git.KeepHosts(in.tokens, stored))
}

func readSettings(o decode.Object) settingsInput {
	in := settingsInput{keys: map[string]*string{}}
	for _, row := range settingsTable {
		if row.read != nil {
			row.read(o, row.name, &in)
		}
	}
	return in
}

// readSecretsStore reads the tokens and secrets that are merged into what is stored.
func readSecretsStore(o decode.Object, _ string, in *settingsInput) {
	if !o.NotNull("secrets_store", decode.KindObject) {
		return
	}
	if store, ok := o.Masked().Object("secrets_store"); ok {
		in.tokens = git.ReadTokens(store)
		in.custom = readCustomSecrets(store)
	}
}

func readCustomSecrets(o decode.Object) []customSecretInput {
	if !o.NotNull("custom_secrets", decode.KindDict) {
		return nil
	}
	dict, ok := o.Dict("custom_secrets")
	if !ok {
		return nil
	}
	var out []customSecretInput
	for _, name := range decode.SortedKeys(dict.Members) {
		if name == "" || utf8.RuneCountInString(name) > fsm.MaxName {
			words := fmt.Sprintf("a secret's name needs 1 to %d characters", fsm.MaxName)
			o.Problems.Value(decode.At(dict.Loc, decode.Truncate(name, 64), "[key]"), words, decode.Masked)
			continue
		}
		if !dict.NotNull(name, decode.KindObject) {
			continue
		}
		one, ok := dict.Object(name)
		if !ok {
			continue
		}
		in := customSecretInput{name: name, secret: one.MustText("secret", fsm.MaxParagraph)}
		if one.NotNull("description", decode.KindString) {
			in.description = decode.OrZero(one.Text("description", fsm.MaxLine))
		}
		out = append(out, in)
	}
	return out
}

// command builds the command and lists the secrets to store.
func (in settingsInput) command(user string) (fsm.Body, request.SecretWrites, error) {
	if in.set == nil {
		body := new(fsm.SettingsPutBody)
		writes, err := in.fill(body, user)
		return body, writes, err
	}
	body := &fsm.SettingsPatchBody{Set: in.set}
	writes, err := in.fill(&body.SettingsPutBody, user)
	return body, writes, err
}

// fill sets the members of a body and lists the secrets to store.
func (in settingsInput) fill(body *fsm.SettingsPutBody, user string) (writes request.SecretWrites, err error) {
	*body = fsm.SettingsPutBody{
		Values:        in.values,
		Providers:     make([]fsm.Provider, len(in.tokens)),
		CustomSecrets: make([]fsm.CustomSecret, len(in.custom)),
	}
	for _, row := range settingsTable {
		if row.key != nil {
			*row.key(body) = stageKey(&writes, user, row.name, in.keys[row.name])
		}
	}
	if in.mcp != nil {
		text, err := response.Encode(in.mcp)
		if err != nil {
			return writes, fmt.Errorf("encoding the MCP configuration: %w", err)
		}
		writes.Add(fsm.SettingPath(user, "mcp_config"), "json", string(text), &body.MCPConfig)
	}
	for i, t := range in.tokens {
		body.Providers[i] = t.Row(user)
		stageToken(&writes, user, t, &body.Providers[i])
	}
	for i, one := range in.custom {
		body.CustomSecrets[i] = fsm.CustomSecret{UserID: user, Name: one.name, Description: one.description}
		writes.Add(fsm.CustomSecretPath(user, one.name), "value", one.secret, &body.CustomSecrets[i].Ref)
	}
	return writes, nil
}

// stageKey returns the reference for one key: nil keeps the stored one, a zero reference clears it.
func stageKey(w *request.SecretWrites, user, name string, value *string) *fsm.SecretRef {
	if value == nil {
		return nil
	}
	ref := &fsm.SecretRef{}
	if *value != "" {
		w.Add(fsm.SettingPath(user, name), "value", *value, ref)
	}
	return ref
}

// secretsStoreBody is always empty: tokens and secrets are never returned.
type secretsStoreBody struct {
	ProviderTokens struct{} `json:"provider_tokens"`
	CustomSecrets  struct{} `json:"custom_secrets"`
}

// handleSettingsGet handles GET /api/settings.
func (s *Server) handleSettingsGet(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	stored := v.Settings(c.Caller.User)
	if stored == nil {
		return response.Response{}, errSettingsNotFound()
	}
	mcp := json.RawMessage("null")
	if !stored.MCPConfig.IsZero() {
		text, err := s.calls.ReadSecret(c.Ctx(), stored.MCPConfig, "json")
		if err != nil {
			return response.Response{}, err
		}
		mcp = json.RawMessage(text)
	}
	body, err := s.settings.body(&storedSettings{stored, mcp, v.Providers(c.Caller.User)})
	if err != nil {
		return response.Response{}, err
	}
	return response.Response{Status: http.StatusOK, Body: response.EncodedItems{Items: []json.RawMessage{body}}}, nil
}
