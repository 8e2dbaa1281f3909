package operators

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// OrphanList handles GET /api/v1/operator/orphans.
func (s *Server) OrphanList(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows := v.Orphans()
	items := make([]wire.Orphan, len(rows))
	for i, o := range rows {
		items[i] = wire.Orphan{
			Kind: o.Kind, Sandbox: o.Sandbox, Reason: o.Reason, Birth: wire.OrNull(o.Birth), Since: wire.At(o.Since),
			Delete: o.Delete,
			Owner:  wire.OrNull(o.Owner), Client: wire.OrNull(o.Client), Volume: wire.OrNull(o.Volume),
		}
		if o.Kind == fsm.OrphanLost {
			items[i].Bytes = &o.Bytes
		}
		if at, goes := s.removableAt(v, o, nil, c.Now); goes {
			items[i].RemovableAt = wire.TimeOrNull(&at)
		}
	}
	return response.OK(wire.NewPage(items, ""))
}

// OrphanDelete handles DELETE /api/v1/operator/orphans/{kind}/{id}: the leader removes it
// without waiting for the retention.
func (s *Server) OrphanDelete(c *request.Call) (response.Response, error) {
	body := &fsm.OrphanDeleteBody{Kind: c.Params.ByName("kind"), Sandbox: c.Params.ByName("id")}
	if fsm.Validate(body) != nil {
		return response.Response{}, response.NotFound()
	}
	if body.Kind == fsm.OrphanLost { // nodes below the version don't know the kind
		v, err := c.View()
		if err != nil {
			return response.Response{}, err
		}
		if v.Orphan(body.Kind, body.Sandbox) == nil {
			return response.Response{}, response.NotFound()
		}
	}
	if _, err := c.Propose(body); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Not Found")
	}
	return response.OK(wire.Success{Success: true})
}

// OrphanRestore handles POST /api/v1/operator/orphans/{kind}/{id}/restore: what a lost client has
// becomes a sandbox of its owner.
func (s *Server) OrphanRestore(c *request.Call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	kind, volume := c.Params.ByName("kind"), c.Params.ByName("id")
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.View()
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if !v.Active(fsm.VersionRoom) {
			return nil, request.SecretWrites{}, fsm.NeedsVersion("restoring what a lost client has", fsm.VersionRoom,
				v.ProtocolVersion())
		}
		o := v.Orphan(fsm.OrphanLost, volume)
		if kind != fsm.OrphanLost || o == nil {
			return nil, request.SecretWrites{}, response.NotFound()
		}
		if err := c.Operate(v, "restore what a lost client has of a sandbox", o.Sandbox, o.Owner); err != nil {
			return nil, request.SecretWrites{}, err
		}
		if over := v.RestoreAdmission(volume, c.Now); over != nil {
			return nil, request.SecretWrites{}, over
		}
		return s.newRestore(c, v, o)
	}, func(res fsm.Result) (response.Response, error) {
		if res.Sandbox == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.OrphanRestore)
		}
		return response.OK(wire.RestoredSandbox{Sandbox: res.Sandbox.ID, Owner: res.Sandbox.UserID})
	})
}

// newRestore builds the command and the new sandbox's key. The agent server's data is encrypted with the
// former sandbox's second key, which goes along where it still exists.
func (s *Server) newRestore(c *request.Call, v *fsm.View, o *fsm.Orphan) (fsm.Body, request.SecretWrites, error) {
	key, seal := apikey.Random(apikey.SandboxKeyLen), apikey.Random(apikey.SandboxKeyLen)
	if former := v.SandboxAny(o.Sandbox); former != nil && former.UserID == o.Owner {
		entry, err := s.ReadEntry(c.Ctx(), former.KeyRef)
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if entry[fsm.MemberSecretKey] != "" {
			seal = entry[fsm.MemberSecretKey]
		}
	}
	body := &fsm.OrphanRestoreBody{Volume: o.Volume, ID: apikey.Random(apikey.SandboxIDLen), KeyHash: apikey.Hash(key)}
	var writes request.SecretWrites
	writes.Add(fsm.SandboxKeyPath(body.ID), fsm.MemberKey, key, &body.KeyRef)
	writes.Alone()
	writes.Also(fsm.MemberSecretKey, seal)
	return body, writes, nil
}
