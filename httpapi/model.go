package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// defaultChoices is how many models and providers a page has by default.
const defaultChoices = 50

// modelRoutes are a user's routes to what can be chosen: models, their providers, skills.
func modelRoutes() []route {
	const get = http.MethodGet
	return []route{
		{name: "model.search", method: get, path: "/api/v1/config/models/search", access: user,
			handle: (*Server).handleModelSearch},
		{name: "model.providers", method: get, path: "/api/v1/config/providers/search", access: user,
			handle: (*Server).handleProviderSearch},
		{name: "skill.search", method: get, path: "/api/v1/skills/search", access: user,
			handle: (*Server).handleSkillSearch},
	}
}

// modelBody is a model that can be chosen.
type modelBody struct {
	Provider *string `json:"provider"`
	Name     string  `json:"name"`
	// Verified means that the operator has named it.
	Verified  bool    `json:"verified"`
	Hidden    bool    `json:"hidden"`
	Canonical *string `json:"canonical"`
}

// providerBody is a vendor of models.
type providerBody struct {
	Name     string `json:"name"`
	Verified bool   `json:"verified"`
}

// choiceQuery is what the searches of models and providers ask for.
type choiceQuery struct {
	part     string
	verified *bool
	limit    int
	token    string
}

func (c *call) readChoices() choiceQuery {
	q := choiceQuery{
		part:  strings.ToLower(decode.OrZero(c.Query.Text("query", fsm.MaxLine))),
		limit: int(c.Query.Integer("limit", defaultChoices, 0, request.MaxBatch)), token: request.PageIDOf(c.Query),
	}
	if _, sent := c.Query.Values["verified__eq"]; sent || c.Problems.Reads != nil {
		q.verified = new(c.Query.Boolean("verified__eq"))
	}
	return q
}

// matches reports whether a name is one of those that are asked for.
func (q choiceQuery) matches(name string, verified bool) bool {
	return strings.Contains(strings.ToLower(name), q.part) && (q.verified == nil || *q.verified == verified)
}

// handleModelSearch handles GET /api/v1/config/models/search: the models that the operator names,
// and those of the user's settings and profiles.
func (s *Server) handleModelSearch(c *call) (response.Response, error) {
	provider := c.Query.Text("provider__eq", fsm.MaxName)
	q := c.readChoices()
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	var all []modelBody
	for _, one := range modelsOf(v, c.Caller.User) {
		if q.matches(one.Name, one.Verified) && (provider == nil || decode.OrZero(one.Provider) == *provider) {
			all = append(all, one)
		}
	}
	page, next := request.PageAfter(all, func(m modelBody) string { return m.Name }, q.token, q.limit)
	return response.OK(wire.NewPage(page, next))
}

// modelsOf lists the models that a user may use, by name.
func modelsOf(v *fsm.View, user string) (list []modelBody) {
	policy := v.Installation().LLM
	named := slices.Clone(policy.Models)
	for _, price := range policy.Prices {
		named = append(named, price.Model)
	}
	named = slices.DeleteFunc(named, func(name string) bool { return strings.HasSuffix(name, "*") })
	var own []string
	if settings := v.Settings(user); settings != nil {
		own = append(own, decode.OrZero(settings.Values.LLMModel))
	}
	for _, p := range v.Profiles(user, fsm.ProfileLLM) {
		own = append(own, p.Model)
	}
	all := slices.Concat(named, own)
	slices.Sort(all)
	for _, name := range slices.Compact(all) {
		if name != "" && policy.Allows(name) {
			list = append(list, modelBody{Provider: providerOf(name), Name: name, Verified: slices.Contains(named, name)})
		}
	}
	return list
}

// providerOf is the vendor that a model's name tells, nil for none.
func providerOf(model string) *string {
	prefix, _, prefixed := strings.Cut(model, "/")
	for _, vendor := range preset.Vendors() {
		if prefixed && slices.Contains(vendor.Prefixes, prefix) || !prefixed && slices.ContainsFunc(vendor.Begins,
			func(begin string) bool { return strings.HasPrefix(strings.ToLower(model), begin) }) {
			return &vendor.Prefixes[0]
		}
	}
	return nil
}

// handleProviderSearch handles GET /api/v1/config/providers/search: the vendors that names of
// models tell. One with a model that the operator names is verified.
func (s *Server) handleProviderSearch(c *call) (response.Response, error) {
	q := c.readChoices()
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	verified := map[string]bool{}
	for _, one := range modelsOf(v, c.Caller.User) {
		if one.Verified {
			verified[decode.OrZero(one.Provider)] = true
		}
	}
	var all []providerBody
	for _, vendor := range preset.Vendors() {
		if name := vendor.Prefixes[0]; q.matches(name, verified[name]) {
			all = append(all, providerBody{name, verified[name]})
		}
	}
	slices.SortFunc(all, func(a, b providerBody) int { return strings.Compare(a.Name, b.Name) })
	page, next := request.PageAfter(all, func(p providerBody) string { return p.Name }, q.token, q.limit)
	return response.OK(wire.NewPage(page, next))
}

// foundSkill is a skill of a search.
type foundSkill struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Source   string   `json:"source"`
	Triggers []string `json:"triggers"`
}

// handleSkillSearch handles GET /api/v1/skills/search. Skills are files of a conversation's project
// and of its sandbox: without a conversation there are none.
func (s *Server) handleSkillSearch(c *call) (response.Response, error) {
	request.LimitOf(c.Query)
	request.PageIDOf(c.Query)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if _, err := c.View(); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.NewPage([]foundSkill{}, ""))
}
