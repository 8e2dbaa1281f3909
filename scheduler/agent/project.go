package agent

import (
	"context"
	"encoding/json"
	"net/http"
)

// SkillsRequest says which skills a sandbox shall load (PROTOCOL.md, "Skills and hooks").
type SkillsRequest struct {
	LoadPublic  bool `json:"load_public"`
	LoadUser    bool `json:"load_user"`
	LoadProject bool `json:"load_project"`
	LoadOrg     bool `json:"load_org"`
	// ProjectDir is absolute.
	ProjectDir string `json:"project_dir"`
}

// Skills returns the skills that the sandbox has for a project, as the server encodes them: an
// array, or nil for none. A server without this call is ErrRefused with status 404 or 405.
func (c *Client) Skills(ctx context.Context, baseURL, key string, req SkillsRequest) (json.RawMessage, error) {
	var out struct {
		Skills json.RawMessage `json:"skills"`
	}
	err := c.post(ctx, "load skills", baseURL+"/api/skills", key, req, &out)
	return present(out.Skills), err
}

// Hooks returns the hooks of a project (hook_config of a create request), nil for none. dir is
// absolute. A server without this call is ErrRefused with status 404 or 405.
func (c *Client) Hooks(ctx context.Context, baseURL, key, dir string) (json.RawMessage, error) {
	var out struct {
		HookConfig json.RawMessage `json:"hook_config"`
	}
	err := c.post(ctx, "load hooks", baseURL+"/api/hooks", key, map[string]string{"project_dir": dir}, &out)
	return present(out.HookConfig), err
}

// post sends in and decodes the answer into out.
func (c *Client) post(ctx context.Context, op, url, key string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return &Error{Op: op, Kind: ErrRefused, Detail: "the request can't be encoded"}
	}
	return c.call(ctx, c.cfg.CallTimeout, request{op: op, method: http.MethodPost, url: url, key: key, body: body}, out)
}

// present returns nil for null and for an empty list.
func present(doc json.RawMessage) json.RawMessage {
	if s := string(doc); s == "null" || s == "[]" {
		return nil
	}
	return doc
}
