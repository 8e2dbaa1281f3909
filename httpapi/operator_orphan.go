package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleOrphanList handles GET /api/v1/operator/orphans.
func (s *Server) handleOrphanList(c *call) (answer, error) {
	v, err := c.view()
	if err != nil {
		return answer{}, err
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
		if at, goes := s.removableAt(v, o, nil, c.now); goes {
			items[i].RemovableAt = wire.TimeOrNull(&at)
		}
	}
	return ok(wire.NewPage(items, ""))
}

// handleOrphanDelete handles DELETE /api/v1/operator/orphans/{kind}/{id}: the leader removes it
// without waiting for the retention.
func (s *Server) handleOrphanDelete(c *call) (answer, error) {
	body := &fsm.OrphanDeleteBody{Kind: c.params.ByName("kind"), Sandbox: c.params.ByName("id")}
	if fsm.Validate(body) != nil {
		return answer{}, response.NotFound()
	}
	if body.Kind == fsm.OrphanLost { // nodes below the version don't know the kind
		v, err := c.view()
		if err != nil {
			return answer{}, err
		}
		if v.Orphan(body.Kind, body.Sandbox) == nil {
			return answer{}, response.NotFound()
		}
	}
	if _, err := c.propose(body); err != nil {
		return answer{}, response.NotFoundAs(err, "Not Found")
	}
	return ok(wire.Success{Success: true})
}

// handleOrphanRestore handles POST /api/v1/operator/orphans/{kind}/{id}/restore: what a lost client has
// becomes a sandbox of its owner.
func (s *Server) handleOrphanRestore(c *call) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	kind, volume := c.params.ByName("kind"), c.params.ByName("id")
	return c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.view()
		if err != nil {
			return nil, secretWrites{}, err
		}
		if !v.Active(fsm.VersionRoom) {
			return nil, secretWrites{}, fsm.NeedsVersion("restoring what a lost client has", fsm.VersionRoom,
				v.ProtocolVersion())
		}
		o := v.Orphan(fsm.OrphanLost, volume)
		if kind != fsm.OrphanLost || o == nil {
			return nil, secretWrites{}, response.NotFound()
		}
		if err := c.operate(v, "restore what a lost client has of a sandbox", o.Sandbox, o.Owner); err != nil {
			return nil, secretWrites{}, err
		}
		if over := v.RestoreAdmission(volume, c.now); over != nil {
			return nil, secretWrites{}, over
		}
		return c.newRestore(v, o)
	}, func(res fsm.Result) (answer, error) {
		if res.Sandbox == nil {
			return answer{}, errEmptyResult(fsm.OrphanRestore)
		}
		return ok(wire.RestoredSandbox{Sandbox: res.Sandbox.ID, Owner: res.Sandbox.UserID})
	})
}

// newRestore builds the command and the new sandbox's key. The agent server's data is encrypted with the
// former sandbox's second key, which goes along where it still exists.
func (c *call) newRestore(v *fsm.View, o *fsm.Orphan) (fsm.Body, secretWrites, error) {
	key, seal := apikey.Random(sandboxKeyLen), apikey.Random(sandboxKeyLen)
	if former := v.SandboxAny(o.Sandbox); former != nil && former.UserID == o.Owner {
		entry, err := c.server.readEntry(c.ctx(), former.KeyRef)
		if err != nil {
			return nil, secretWrites{}, err
		}
		if entry[fsm.MemberSecretKey] != "" {
			seal = entry[fsm.MemberSecretKey]
		}
	}
	body := &fsm.OrphanRestoreBody{Volume: o.Volume, ID: apikey.Random(sandboxIDLen), KeyHash: apikey.Hash(key)}
	var writes secretWrites
	writes.add(fsm.SandboxKeyPath(body.ID), fsm.MemberKey, key, &body.KeyRef)
	writes.alone()
	writes.also(fsm.MemberSecretKey, seal)
	return body, writes, nil
}
