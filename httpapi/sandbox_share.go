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
	"bivouac.dev/bivouac/httpapi/request"
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
func (s *Server) handleSandboxShare(c *call) (response.Response, error) {
	until := c.Now.Add(defaultShare)
	if text := c.Object().Text("expires_at", fsm.MaxName); text != nil {
		at, fault := decode.ToTime(*text)
		if fault != nil {
			c.Object().Fail("expires_at", *text, fault)
		}
		until = at
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	id := apikey.Random(shareIDLen)
	if c.Key != "" { // the answer to a repetition is about the same share
		sum := sha256.Sum256([]byte(c.CommandID()))
		id = hex.EncodeToString(sum[:shareIDLen])
	}
	out, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		port, err := c.portOfSandbox()
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		return &fsm.SandboxShareBody{
			ID:    c.Params.ByName("sandbox_id"),
			Port:  port,
			Share: id,
			Until: until,
		}, request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) { return c.shared(res, id) })
	return out, response.NotFoundAs(err, "Not Found")
}

// shared answers with a share that a command has made.
func (c *call) shared(res fsm.Result, id string) (response.Response, error) {
	if res.Sandbox == nil {
		return response.Response{}, request.ErrEmptyResult(fsm.SandboxShare)
	}
	entry, err := c.server.secrets.Read(c.Ctx(), res.Sandbox.KeyRef)
	switch {
	case fsm.CodeOf(err) == fsm.CodeNotFound: // the recorded result of a repeated request
		return response.Response{}, c.endedShare(res.Sandbox)
	case err != nil:
		return response.Response{}, request.SecretFailure(err)
	}
	key := entry[fsm.MemberKey]
	for _, share := range res.Sandbox.Shares {
		if share.ID == id {
			at := c.server.linksFor(c.Request).proxied(res.Sandbox.ID,
				share.Port) + "/#" + proxy.FragmentCode + "=" + proxy.ShareToken(key, res.Sandbox.ID, share)
			return response.OK(wire.CreatedShare{Share: newShareBody(share), URL: at})
		}
	}
	return response.Response{}, request.ErrEmptyResult(fsm.SandboxShare)
}

// endedShare is the failure of a request whose share ended with the sandbox's key of then.
func (c *call) endedShare(then *fsm.Sandbox) error {
	v, err := c.server.cluster.View(c.Ctx(), cluster.Linearizable)
	if err != nil {
		return err
	}
	now := v.Sandbox(c.Caller.User, then.ID)
	switch {
	case now == nil:
		return response.NotFound()
	case now.KeyRef == then.KeyRef:
		return request.ErrSecretGone(then.KeyRef, nil)
	}
	return response.Error(http.StatusConflict, "This Idempotency-Key made a share that ended when the sandbox got "+
		"another key. Send another Idempotency-Key.")
}

// handleSandboxShares handles GET /api/v1/sandboxes/{sandbox_id}/shares: those in force of all
// ports, with the query parameter port of one.
func (s *Server) handleSandboxShares(c *call) (response.Response, error) {
	port := c.Query.Text("port", fsm.MaxName)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	_, row, err := c.sandboxOfPath()
	if err != nil {
		return response.Response{}, err
	}
	return c.sharesOf(row, port)
}

// handleOperatorSandboxShares handles GET /api/v1/operator/sandboxes/{sandbox_id}/shares.
func (s *Server) handleOperatorSandboxShares(c *call) (response.Response, error) {
	port := c.Query.Text("port", fsm.MaxName)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	_, row, err := c.ownedSandbox("list shares")
	if err != nil {
		return response.Response{}, err
	}
	return c.sharesOf(row, port)
}

// sharesOf lists a sandbox's shares in force, of a port in any of its forms or of all.
func (c *call) sharesOf(row *fsm.Sandbox, port *string) (response.Response, error) {
	name := ""
	if port != nil {
		if name = proxy.PortNamed(row, *port); name == "" {
			return response.Response{}, response.NotFound()
		}
	}
	shares := row.SharesInForce(name, c.Now)
	items := make([]wire.Share, len(shares))
	for i, share := range shares {
		items[i] = newShareBody(share)
	}
	return response.OK(wire.NewPage(items, ""))
}

// handleOperatorSandboxUnshare handles DELETE
// /api/v1/operator/sandboxes/{sandbox_id}/ports/{port}/share, as the owner's own.
func (s *Server) handleOperatorSandboxUnshare(c *call) (response.Response, error) {
	share := decode.OrZero(c.Query.Text("id", fsm.MaxName))
	v, row, err := c.ownedSandbox("revoke shares")
	if err != nil {
		return response.Response{}, err
	}
	if !v.Active(fsm.VersionRotate) {
		return response.Response{}, fsm.NeedsVersion("revoking a user's share", fsm.VersionRotate, v.ProtocolVersion())
	}
	port := proxy.PortNamed(row, c.Params.ByName("port"))
	if port == "" {
		return response.Response{}, response.NotFound()
	}
	return c.commandSandbox(&fsm.SandboxUnshareBody{ID: row.ID, Port: port, Share: share, Operator: true})
}

// handleSandboxUnshare handles DELETE /api/v1/sandboxes/{sandbox_id}/ports/{port}/share: it revokes
// the shares of the port, with the query parameter id one of them.
func (s *Server) handleSandboxUnshare(c *call) (response.Response, error) {
	share := decode.OrZero(c.Query.Text("id", fsm.MaxName))
	port, err := c.portOfSandbox()
	if err != nil {
		return response.Response{}, err
	}
	return c.commandSandbox(&fsm.SandboxUnshareBody{ID: c.Params.ByName("sandbox_id"), Port: port, Share: share})
}

// portOfSandbox returns the name of the port in the path, which may be in any of its forms.
func (c *call) portOfSandbox() (string, error) {
	_, row, err := c.sandboxOfPath()
	if err != nil {
		return "", err
	}
	port := proxy.PortNamed(row, c.Params.ByName("port"))
	if port == "" || port == fsm.PortAgentServer {
		return "", response.NotFound()
	}
	return port, nil
}
