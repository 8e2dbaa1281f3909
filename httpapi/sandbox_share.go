package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// defaultShare is how long a share lasts if the request does not say.
const defaultShare = 24 * time.Hour

// shareIDLen is the length of a share's id.
const shareIDLen = 16

func newShareBody(share fsm.Share) wire.Share {
	b := wire.Share{ID: share.ID, Port: share.Port, ExpiresAt: wire.At(share.Until)}
	if !share.Created.IsZero() {
		created := wire.At(share.Created)
		b.CreatedAt = &created
	}
	return b
}

// handleSandboxShare handles POST /api/v1/sandboxes/{sandbox_id}/ports/{port}/share: {"expires_at"}
// shares one port until a time.
func (s *Server) handleSandboxShare(c *call) (answer, error) {
	until := c.now.Add(defaultShare)
	if text := c.object().Text("expires_at", fsm.MaxName); text != nil {
		at, fault := decode.ToTime(*text)
		if fault != nil {
			c.object().Fail("expires_at", *text, fault)
		}
		until = at
	}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	id := apikey.Random(shareIDLen)
	if c.key != "" { // the answer to a repetition is about the same share
		sum := sha256.Sum256([]byte(c.commandID()))
		id = hex.EncodeToString(sum[:shareIDLen])
	}
	out, err := c.once(func() (fsm.Body, secretWrites, error) {
		port, err := c.portOfSandbox()
		if err != nil {
			return nil, secretWrites{}, err
		}
		return &fsm.SandboxShareBody{
			ID:    c.params.ByName("sandbox_id"),
			Port:  port,
			Share: id,
			Until: until,
		}, secretWrites{}, nil
	}, func(res fsm.Result) (answer, error) { return c.shared(res, id) })
	return out, response.NotFoundAs(err, "Not Found")
}

// shared answers with a share that a command has made.
func (c *call) shared(res fsm.Result, id string) (answer, error) {
	if res.Sandbox == nil {
		return answer{}, errEmptyResult(fsm.SandboxShare)
	}
	entry, err := c.server.secrets.Read(c.ctx(), res.Sandbox.KeyRef)
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound: // the recorded result of a repeated request
		return answer{}, c.endedShare(res.Sandbox)
	case err != nil:
		return answer{}, secretFailure(err)
	}
	key := entry[fsm.MemberKey]
	for _, share := range res.Sandbox.Shares {
		if share.ID == id {
			at := c.server.linksFor(c.r).proxied(res.Sandbox.ID,
				share.Port) + "/#" + proxy.FragmentCode + "=" + proxy.ShareToken(key, res.Sandbox.ID, share)
			return ok(wire.CreatedShare{Share: newShareBody(share), URL: at})
		}
	}
	return answer{}, errEmptyResult(fsm.SandboxShare)
}

// endedShare is the failure of a request whose share ended with the sandbox's key of then.
func (c *call) endedShare(then *fsm.Sandbox) error {
	v, err := c.server.cluster.View(c.ctx(), cluster.Linearizable)
	if err != nil {
		return err
	}
	now := v.Sandbox(c.who.user, then.ID)
	switch {
	case now == nil:
		return response.NotFound()
	case now.KeyRef == then.KeyRef:
		return errSecretGone(then.KeyRef, nil)
	}
	return response.Error(http.StatusConflict, "This Idempotency-Key made a share that ended when the sandbox got "+
		"another key. Send another Idempotency-Key.")
}

// handleSandboxShares handles GET /api/v1/sandboxes/{sandbox_id}/shares: those in force of all
// ports, with the query parameter port of one.
func (s *Server) handleSandboxShares(c *call) (answer, error) {
	port := c.query.Text("port", fsm.MaxName)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	_, row, err := c.sandboxOfPath()
	if err != nil {
		return answer{}, err
	}
	return c.sharesOf(row, port)
}

// handleOperatorSandboxShares handles GET /api/v1/operator/sandboxes/{sandbox_id}/shares.
func (s *Server) handleOperatorSandboxShares(c *call) (answer, error) {
	port := c.query.Text("port", fsm.MaxName)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	_, row, err := c.ownedSandbox("list shares")
	if err != nil {
		return answer{}, err
	}
	return c.sharesOf(row, port)
}

// sharesOf lists a sandbox's shares in force, of a port in any of its forms or of all.
func (c *call) sharesOf(row *fsm.Sandbox, port *string) (answer, error) {
	name := ""
	if port != nil {
		if name = proxy.PortNamed(row, *port); name == "" {
			return answer{}, response.NotFound()
		}
	}
	shares := row.SharesInForce(name, c.now)
	items := make([]wire.Share, len(shares))
	for i, share := range shares {
		items[i] = newShareBody(share)
	}
	return ok(wire.NewPage(items, ""))
}

// handleOperatorSandboxUnshare handles DELETE
// /api/v1/operator/sandboxes/{sandbox_id}/ports/{port}/share, as the owner's own.
func (s *Server) handleOperatorSandboxUnshare(c *call) (answer, error) {
	share := decode.OrZero(c.query.Text("id", fsm.MaxName))
	v, row, err := c.ownedSandbox("revoke shares")
	if err != nil {
		return answer{}, err
	}
	if !v.Active(fsm.VersionRotate) {
		return answer{}, fsm.NeedsVersion("revoking a user's share", fsm.VersionRotate, v.ProtocolVersion())
	}
	port := proxy.PortNamed(row, c.params.ByName("port"))
	if port == "" {
		return answer{}, response.NotFound()
	}
	return c.commandSandbox(&fsm.SandboxUnshareBody{ID: row.ID, Port: port, Share: share, Operator: true})
}

// handleSandboxUnshare handles DELETE /api/v1/sandboxes/{sandbox_id}/ports/{port}/share: it revokes
// the shares of the port, with the query parameter id one of them.
func (s *Server) handleSandboxUnshare(c *call) (answer, error) {
	share := decode.OrZero(c.query.Text("id", fsm.MaxName))
	port, err := c.portOfSandbox()
	if err != nil {
		return answer{}, err
	}
	return c.commandSandbox(&fsm.SandboxUnshareBody{ID: c.params.ByName("sandbox_id"), Port: port, Share: share})
}

// portOfSandbox returns the name of the port in the path, which may be in any of its forms.
func (c *call) portOfSandbox() (string, error) {
	_, row, err := c.sandboxOfPath()
	if err != nil {
		return "", err
	}
	port := proxy.PortNamed(row, c.params.ByName("port"))
	if port == "" || port == fsm.PortAgentServer {
		return "", response.NotFound()
	}
	return port, nil
}
