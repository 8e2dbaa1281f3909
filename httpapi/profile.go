package httpapi

import (
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// Path prefixes of profiles. A user's organization is the user's own.
const (
	pathAgentProfiles = "/api/agent-profiles"
	pathLLMProfiles   = "/api/v1/settings/profiles"
	pathOrganizations = "/api/organizations"
	pathOrgProfiles   = pathOrganizations + "/:org_id/profiles"
)

// profileRoutes are a user's routes to profiles.
func profileRoutes() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	list := []route{
		{name: "agent_profile.list", method: get, path: pathAgentProfiles, access: user,
			handle: (*Server).handleAgentProfileList},
		{name: "agent_profile.get", method: get, path: pathAgentProfiles + "/:name", access: user,
			handle: (*Server).handleAgentProfileGet},
		{name: "agent_profile.save", method: post, path: pathAgentProfiles + "/:name", access: user,
			handle: (*Server).handleAgentProfileSave},
		{name: "agent_profile.delete", method: del, path: pathAgentProfiles + "/:name", access: user,
			handle: deletesProfile(fsm.ProfileAgent)},
		{name: "agent_profile.rename", method: post, path: pathAgentProfiles + "/:name/rename", access: user,
			handle: renamesProfile(fsm.ProfileAgent)},
		{name: "agent_profile.activate", method: post, path: pathAgentProfiles + "/:name/activate", access: user,
			handle: (*Server).handleAgentProfileActivate},
	}
	for _, of := range [][2]string{{"llm_profile", pathLLMProfiles}, {"organization_profile", pathOrgProfiles}} {
		noun, base := of[0], of[1]
		list = append(list,
			route{name: noun + ".list", method: get, path: base, access: user, handle: (*Server).handleLLMProfileList},
			route{name: noun + ".get", method: get, path: base + "/:name", access: user,
				handle: (*Server).handleLLMProfileGet},
			route{name: noun + ".save", method: post, path: base + "/:name", access: user,
				handle: (*Server).handleLLMProfileSave},
			route{name: noun + ".delete", method: del, path: base + "/:name", access: user,
				handle: deletesProfile(fsm.ProfileLLM)},
			route{name: noun + ".rename", method: post, path: base + "/:name/rename", access: user,
				handle: renamesProfile(fsm.ProfileLLM)},
			route{name: noun + ".activate", method: post, path: base + "/:name/activate", access: user,
				handle: (*Server).handleLLMProfileActivate},
		)
	}
	return list
}

// profileBody is the answer to a change of a profile.
type profileBody struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// profileName reads the name of the path, which must be one.
func (c *call) profileName() string {
	name := c.Params.ByName("name")
	if !fsm.ValidProfileName(name) {
		c.Problems.Value([]string{"path", "name"}, badProfileName(), decode.Echo(decode.Truncate(name, 64), true))
	}
	return name
}

// profile returns the caller's profile that the path names.
func (c *call) profile(kind fsm.ProfileKind) (*fsm.Profile, error) {
	name := c.profileName()
	if err := c.begin(); err != nil {
		return nil, err
	}
	v, err := c.View()
	if err != nil {
		return nil, err
	}
	p := v.Profile(c.Caller.User, kind, name)
	if p == nil {
		return nil, fsm.ErrProfileNotFound(kind, name)
	}
	return p, nil
}

func badProfileName() string {
	return fmt.Sprintf("the name of a profile has 1 to %d of A-Z a-z 0-9 . _ -", fsm.MaxProfileName)
}

// ownOrganization refuses the organization of a path that is not the caller's own.
func (c *call) ownOrganization() error {
	if org := c.Params.ByName("org_id"); org != "" && org != c.Caller.User {
		return response.Error(http.StatusNotFound, "Organization not found")
	}
	return nil
}

// begin checks a request to profiles.
func (c *call) begin() error {
	if err := c.Check(); err != nil {
		return err
	}
	return c.ownOrganization()
}

// current returns a linearizable view for a change that needs fsm.VersionProfiles. what begins the
// sentence of the refusal.
func (c *call) current(what string) (*fsm.View, error) {
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return nil, err
	}
	if !v.Active(fsm.VersionProfiles) {
		return nil, fsm.NeedsVersion(what, fsm.VersionProfiles, v.ProtocolVersion())
	}
	return v, nil
}

// deletesProfile handles DELETE of a profile, which may be gone already.
func deletesProfile(kind fsm.ProfileKind) handler {
	return func(_ *Server, c *call) (response.Response, error) {
		name := c.profileName()
		if err := c.begin(); err != nil {
			return response.Response{}, err
		}
		if _, err := c.Propose(&fsm.ProfileDeleteBody{Kind: kind, Name: name}); err != nil {
			return response.Response{}, err
		}
		return response.OK(profileBody{name, fmt.Sprintf("%s '%s' deleted", kind.Title(), name)})
	}
}

// renamesProfile handles POST …/{name}/rename.
func renamesProfile(kind fsm.ProfileKind) handler {
	return func(_ *Server, c *call) (response.Response, error) {
		name, o := c.profileName(), c.Object()
		next := o.MustText("new_name", fsm.MaxProfileName)
		if next != "" && !fsm.ValidProfileName(next) || o.Has("new_name") && o.Value("new_name") == "" {
			o.Rule("new_name", badProfileName())
		}
		if err := c.begin(); err != nil {
			return response.Response{}, err
		}
		return c.Once(func() (fsm.Body, request.SecretWrites, error) {
			return &fsm.ProfileRenameBody{Kind: kind, Name: name, NewName: next}, request.SecretWrites{}, nil
		}, func(fsm.Result) (response.Response, error) {
			return response.OK(profileBody{next, fmt.Sprintf("%s '%s' renamed to '%s'", kind.Title(), name, next)})
		})
	}
}
