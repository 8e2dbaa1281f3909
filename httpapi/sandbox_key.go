package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleSandboxRotateKey handles POST /api/v1/sandboxes/{sandbox_id}/rotate-key: the sandbox gets
// another key. The response does not have it: a key is shown while the sandbox runs with it.
func (s *Server) handleSandboxRotateKey(c *call) (response.Response, error) {
	return c.rotateKey(func(v *fsm.View, id string) (*fsm.Sandbox, error) {
		return v.Sandbox(c.Caller.User, id), nil
	}, false)
}

// handleOperatorSandboxRotateKey handles POST /api/v1/operator/sandboxes/{sandbox_id}/rotate-key.
func (s *Server) handleOperatorSandboxRotateKey(c *call) (response.Response, error) {
	return c.rotateKey(func(v *fsm.View, id string) (*fsm.Sandbox, error) {
		row, owner := v.SandboxAny(id), ""
		if row != nil {
			owner = row.UserID
		}
		if row != nil && (row.Member() || row.Desired == fsm.DesiredDeleted) {
			row = nil
		}
		return row, c.Operate(v, "rotate the key of a sandbox", id, owner)
	}, true)
}

// rotateKey replaces the key of the sandbox that find returns, nil for none.
func (c *call) rotateKey(find func(*fsm.View, string) (*fsm.Sandbox, error), operator bool) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	out, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.View()
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		row, err := find(v, c.Params.ByName("sandbox_id"))
		switch {
		case err != nil:
			return nil, request.SecretWrites{}, err
		case row == nil:
			return nil, request.SecretWrites{}, response.NotFound()
		case !v.Active(fsm.VersionRotate):
			return nil, request.SecretWrites{}, fsm.NeedsVersion("replacing the key of a sandbox", fsm.VersionRotate,
				v.ProtocolVersion())
		}
		return c.newKey(row, operator)
	}, func(fsm.Result) (response.Response, error) { return response.OK(wire.Success{Success: true}) })
	return out, response.NotFoundAs(err, "Not Found")
}

// newKey builds the command that replaces a sandbox's key. The entry's other members stay: the agent
// server's data is encrypted with one of them.
func (c *call) newKey(row *fsm.Sandbox, operator bool) (fsm.Body, request.SecretWrites, error) {
	entry, err := c.server.sandboxEntry(c.Ctx(), row)
	if err != nil {
		return nil, request.SecretWrites{}, err
	}
	key := apikey.Random(apikey.SandboxKeyLen)
	body := &fsm.SandboxRotateKeyBody{ID: row.ID, KeyHash: apikey.Hash(key), Operator: operator}
	var writes request.SecretWrites
	writes.Add(fsm.SandboxKeyPath(row.ID), fsm.MemberKey, key, &body.KeyRef)
	for member, value := range entry {
		if member != fsm.MemberKey {
			writes.Also(member, value)
		}
	}
	return body, writes, nil
}
