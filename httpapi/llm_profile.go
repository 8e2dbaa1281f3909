package httpapi

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// llmProfilesBody is the answer of GET /api/v1/settings/profiles.
type llmProfilesBody struct {
	Profiles []llmProfileSummary `json:"profiles"`
	Active   *string             `json:"active_profile"`
}

type llmProfileSummary struct {
	Name      string  `json:"name"`
	Model     *string `json:"model"`
	BaseURL   *string `json:"base_url"`
	APIKeySet bool    `json:"api_key_set"`
}

// llmConfig is a model, its base URL and its key, which no answer has.
type llmConfig struct {
	Model   *string `json:"model"`
	BaseURL *string `json:"base_url"`
	APIKey  *string `json:"api_key"`
}

func newLLMConfig(p *fsm.Profile) llmConfig {
	return llmConfig{Model: wire.OrNull(p.Model), BaseURL: wire.OrNull(p.BaseURL)}
}

// activeLLMProfile is the name of the profile that the settings have, nil for none.
func activeLLMProfile(v *fsm.View, user string) *string {
	for _, p := range v.Profiles(user, fsm.ProfileLLM) {
		if p.Active && p.AppliedTo(v.Settings(user)) {
			return &p.Name
		}
	}
	return nil
}

// handleLLMProfileList handles GET /api/v1/settings/profiles.
func (s *Server) handleLLMProfileList(c *call) (response.Response, error) {
	if err := c.begin(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	body := llmProfilesBody{Profiles: []llmProfileSummary{}, Active: activeLLMProfile(v, c.Caller.User)}
	for _, p := range v.Profiles(c.Caller.User, fsm.ProfileLLM) {
		body.Profiles = append(body.Profiles, llmProfileSummary{
			Name: p.Name, Model: wire.OrNull(p.Model), BaseURL: wire.OrNull(p.BaseURL), APIKeySet: !p.Key.IsZero(),
		})
	}
	return response.OK(body)
}

// llmProfileBody is the answer of GET /api/v1/settings/profiles/{name}.
type llmProfileBody struct {
	Name      string    `json:"name"`
	Config    llmConfig `json:"config"`
	APIKeySet bool      `json:"api_key_set"`
}

// handleLLMProfileGet handles GET /api/v1/settings/profiles/{name}.
func (s *Server) handleLLMProfileGet(c *call) (response.Response, error) {
	p, err := c.profile(fsm.ProfileLLM)
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(llmProfileBody{Name: p.Name, Config: newLLMConfig(p), APIKeySet: !p.Key.IsZero()})
}

// savedLLM is a decoded POST /api/v1/settings/profiles/{name}.
type savedLLM struct {
	// given: the request has the model; without it the settings' is saved.
	given            bool
	model, baseURL   string
	key              *string
	keepKey, without bool
}

func (c *call) readSavedLLM() (in savedLLM) {
	if text := bytes.TrimSpace(c.Body); c.Problems.Reads == nil && (len(text) == 0 || string(text) == "null") {
		return in
	}
	o := c.Object().Masked()
	in.without = !o.BooleanOr("include_secrets", true)
	in.keepKey = o.BooleanOr("preserve_existing_api_key", false)
	llm, given := o.Object("llm")
	if !given {
		return in
	}
	llm.Strict("model", "api_key", "base_url", "usage_id", "auth_type")
	in.given, in.model = true, llm.MustText("model", fsm.MaxLine)
	in.baseURL = decode.OrZero(llm.Endpoint("base_url", fsm.MaxLine))
	in.key = llm.Text("api_key", fsm.MaxParagraph)
	llm.Text("usage_id", fsm.MaxName) // the agent's own
	llm.Enum("auth_type", []string{"api_key"})
	return in
}

// command builds the command of a save. was is the profile that is there, nil for none.
func (in savedLLM) command(v *fsm.View, user, name string) (*fsm.ProfilePutBody, request.SecretWrites, error) {
	var writes request.SecretWrites
	p := fsm.Profile{Kind: fsm.ProfileLLM, Name: name, ID: uuid.NewString(), Model: in.model, BaseURL: in.baseURL}
	was := v.Profile(user, fsm.ProfileLLM, name)
	if was != nil {
		p.ID = was.ID
	}
	body := &fsm.ProfilePutBody{Profile: p, KeepKey: in.keepKey && was != nil, FromSettings: !in.given}
	switch {
	case !in.given && in.without:
		settings := v.Settings(user)
		if settings == nil {
			return nil, writes, errSettingsNotFound()
		}
		body.FromSettings, body.Profile.Model = false, decode.OrZero(settings.Values.LLMModel)
		body.Profile.BaseURL = decode.OrZero(settings.Values.LLMBaseURL)
	case !in.given || body.KeepKey || in.without:
	case in.key == nil: // the answer of a read has none
		body.KeepKey = was != nil
	case *in.key != "":
		writes.Add(fsm.ProfileKeyPath(user, p.ID), "value", *in.key, &body.Profile.Key)
	}
	if in.without {
		body.KeepKey = false
	}
	return body, writes, nil
}

// handleLLMProfileSave handles POST /api/v1/settings/profiles/{name}.
func (s *Server) handleLLMProfileSave(c *call) (response.Response, error) {
	name, in := c.profileName(), c.readSavedLLM()
	if err := c.begin(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.current("an LLM profile")
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		return in.command(v, c.Caller.User, name)
	}, func(fsm.Result) (response.Response, error) {
		return response.Response{
			Status: http.StatusCreated, Body: profileBody{name, fmt.Sprintf("Profile '%s' saved", name)},
		}, nil
	})
}

// appliedBody is the answer of POST /api/v1/settings/profiles/{name}/activate.
type appliedBody struct {
	Name    string  `json:"name"`
	Message string  `json:"message"`
	Model   *string `json:"model"`
}

// handleLLMProfileActivate handles POST /api/v1/settings/profiles/{name}/activate.
func (s *Server) handleLLMProfileActivate(c *call) (response.Response, error) {
	name := c.profileName()
	if err := c.begin(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return &fsm.ProfileActivateBody{Kind: fsm.ProfileLLM, Name: name}, request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) {
		if res.Profile == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.ProfileActivate)
		}
		return response.OK(appliedBody{
			Name: name, Message: fmt.Sprintf("Switched to profile '%s'", name), Model: wire.OrNull(res.Profile.Model),
		})
	})
}
