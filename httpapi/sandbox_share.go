package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// defaultShare is how long a share lasts if the request does not say.
const defaultShare = 24 * time.Hour

// shareIDLen is the length of a share's id.
const shareIDLen = 16

// shareBody is a share of a sandbox's port. Its URL has the token in the fragment.
type shareBody struct {
	ID        string   `json:"id"`
	Port      string   `json:"port"`
	URL       string   `json:"url"`
	ExpiresAt wireTime `json:"expires_at"`
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
		return &fsm.SandboxShareBody{ID: c.params.ByName("sandbox_id"), Port: port, Share: id, Until: until}, secretWrites{}, nil
	}, func(res fsm.Result) (answer, error) { return c.shared(res, id) })
	return out, response.NotFoundAs(err, "Not Found")
}

// shared answers with a share that a command has made.
func (c *call) shared(res fsm.Result, id string) (answer, error) {
	if res.Sandbox == nil {
		return answer{}, errEmptyResult(fsm.SandboxShare)
	}
	key, err := c.server.readSecret(c.ctx(), res.Sandbox.KeyRef, fsm.MemberKey)
	if err != nil {
		return answer{}, err
	}
	for _, share := range res.Sandbox.Shares {
		if share.ID == id {
			at := c.server.linksFor(c.r).proxied(res.Sandbox.ID, share.Port) + "/#" + proxy.FragmentCode + "=" + proxy.ShareToken(key, res.Sandbox.ID, share)
			return ok(shareBody{ID: id, Port: share.Port, URL: at, ExpiresAt: wireTime(share.Until)})
		}
	}
	return answer{}, errEmptyResult(fsm.SandboxShare)
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
	v, err := c.view()
	if err != nil {
		return "", err
	}
	row := v.Sandbox(c.who.user, c.params.ByName("sandbox_id"))
	if row == nil {
		return "", response.NotFound()
	}
	port := proxy.PortNamed(row, c.params.ByName("port"))
	if port == "" || port == fsm.PortAgentServer {
		return "", response.NotFound()
	}
	return port, nil
}
