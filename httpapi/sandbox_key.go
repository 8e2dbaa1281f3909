package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleSandboxRotateKey handles POST /api/v1/sandboxes/{sandbox_id}/rotate-key: the sandbox gets
// another key. The response does not have it: a key is shown while the sandbox runs with it.
func (s *Server) handleSandboxRotateKey(c *call) (answer, error) {
	return c.rotateKey(func(v *fsm.View, id string) (*fsm.Sandbox, error) { return v.Sandbox(c.who.user, id), nil }, false)
}

// handleOperatorSandboxRotateKey handles POST /api/v1/operator/sandboxes/{sandbox_id}/rotate-key.
func (s *Server) handleOperatorSandboxRotateKey(c *call) (answer, error) {
	return c.rotateKey(func(v *fsm.View, id string) (*fsm.Sandbox, error) {
		row, owner := v.SandboxAny(id), ""
		if row != nil {
			owner = row.UserID
		}
		if row != nil && (row.Member() || row.Desired == fsm.DesiredDeleted) {
			row = nil
		}
		return row, c.operate(v, "rotate the key of a sandbox", id, owner)
	}, true)
}

// rotateKey replaces the key of the sandbox that find returns, nil for none.
func (c *call) rotateKey(find func(*fsm.View, string) (*fsm.Sandbox, error), operator bool) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	out, err := c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.view()
		if err != nil {
			return nil, secretWrites{}, err
		}
		row, err := find(v, c.params.ByName("sandbox_id"))
		switch {
		case err != nil:
			return nil, secretWrites{}, err
		case row == nil:
			return nil, secretWrites{}, response.NotFound()
		case !v.Active(fsm.VersionRotate):
			return nil, secretWrites{}, fsm.NeedsVersion("replacing the key of a sandbox", fsm.VersionRotate,
				v.ProtocolVersion())
		}
		return c.newKey(row, operator)
	}, func(fsm.Result) (answer, error) { return ok(wire.Success{Success: true}) })
	return out, response.NotFoundAs(err, "Not Found")
}

// newKey builds the command that replaces a sandbox's key. The entry's other members stay: the agent
// server's data is encrypted with one of them.
func (c *call) newKey(row *fsm.Sandbox, operator bool) (fsm.Body, secretWrites, error) {
	entry, err := c.server.sandboxEntry(c.ctx(), row)
	if err != nil {
		return nil, secretWrites{}, err
	}
	key := apikey.Random(sandboxKeyLen)
	body := &fsm.SandboxRotateKeyBody{ID: row.ID, KeyHash: apikey.Hash(key), Operator: operator}
	var writes secretWrites
	writes.add(fsm.SandboxKeyPath(row.ID), fsm.MemberKey, key, &body.KeyRef)
	for member, value := range entry {
		if member != fsm.MemberKey {
			writes.also(member, value)
		}
	}
	return body, writes, nil
}
