package httpapi

import (
	"net/http"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// organizationRoutes are the routes to a user's own organization, which is all that there is.
func organizationRoutes() []route {
	const get = http.MethodGet
	return []route{
		{name: "organization.list", method: get, path: pathOrganizations, access: user,
			handle: (*Server).handleOrganizationList},
		{name: "organization.me", method: get, path: pathOrganizations + "/:org_id/me", access: user,
			handle: (*Server).handleOrganizationMe},
		{name: "organization.connections", method: get, path: pathOrganizations + "/:org_id/provider-connections",
			access: user, handle: (*Server).handleOrganizationConnections},
	}
}

// organizationsBody is the answer of GET /api/organizations.
type organizationsBody struct {
	Items      []organizationBody `json:"items"`
	NextPageID *string            `json:"next_page_id"`
	Current    string             `json:"current_org_id"`
}

type organizationBody struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	IsPersonal bool   `json:"is_personal"`
}

// handleOrganizationList handles GET /api/organizations: each user has one, with the user's id.
func (s *Server) handleOrganizationList(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if _, err := c.View(); err != nil {
		return response.Response{}, err
	}
	id := c.Caller.User
	return response.OK(organizationsBody{
		Items: []organizationBody{{ID: id, Name: id, IsPersonal: true}}, Current: id,
	})
}

// organizationMeBody is the answer of GET /api/organizations/{org_id}/me.
type organizationMeBody struct {
	OrgID  string  `json:"org_id"`
	UserID string  `json:"user_id"`
	Email  *string `json:"email"`
	Role   string  `json:"role"`
	// Permissions is null: clients go by the role.
	Permissions *[]string `json:"permissions"`
	LLMAPIKey   string    `json:"llm_api_key"`
}

// handleOrganizationMe handles GET /api/organizations/{org_id}/me.
func (s *Server) handleOrganizationMe(c *call) (response.Response, error) {
	v, err := c.viewOfOrganization()
	if err != nil {
		return response.Response{}, err
	}
	body := organizationMeBody{OrgID: c.Caller.User, UserID: c.Caller.User, Role: "owner"}
	if settings := v.Settings(c.Caller.User); settings != nil {
		body.Email = settings.Values.Email
	}
	return response.OK(body)
}

// connectionsBody is the answer of GET /api/organizations/{org_id}/provider-connections.
type connectionsBody struct {
	Connections []string `json:"connections"`
}

// handleOrganizationConnections handles GET /api/organizations/{org_id}/provider-connections. There
// are none: LLM profiles have their keys.
func (s *Server) handleOrganizationConnections(c *call) (response.Response, error) {
	if _, err := c.viewOfOrganization(); err != nil {
		return response.Response{}, err
	}
	return response.OK(connectionsBody{Connections: []string{}})
}

// viewOfOrganization returns the view of a read of the caller's organization.
func (c *call) viewOfOrganization() (*fsm.View, error) {
	if err := c.begin(); err != nil {
		return nil, err
	}
	return c.View()
}
