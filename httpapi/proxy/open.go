package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
)

// openPath exchanges a code. FragmentCode is the name of the code in a URL's fragment, which a
// browser sends to nobody.
const (
	openPath     = reserved + "open"
	FragmentCode = "bivouac"
)

// maxOpenBody bounds the body of an exchange.
const maxOpenBody = 4 << 10

// opens reports whether a target is the exchange of a code for a page's pass.
func (t target) opens() bool { return t.rest == openPath && t.pass == "" && !t.isAgent() }

// opened is the answer to an exchange: the path before that of the page.
type opened struct {
	To string `json:"to"`
}

// open exchanges a one-time code or a share's token for the cookie of the port's host or, on the
// API's address, for a pass in the path.
func (p *request) open(ex *RequestInfo) error {
	if p.r.Method != http.MethodPost {
		return response.Error(http.StatusMethodNotAllowed, "Method Not Allowed")
	}
	raw, err := io.ReadAll(http.MaxBytesReader(p.w, p.r.Body, maxOpenBody))
	var in struct {
		Code string `json:"code"`
	}
	if err != nil || json.Unmarshal(raw, &in) != nil {
		return response.Error(http.StatusBadRequest, `The body must be {"code": "..."}`)
	}
	if err := p.admit(credentials{code: in.Code}, ex); err != nil {
		return err
	}
	if p.grant.port == fsm.PortAgentServer {
		return response.Unauthorized()
	}
	if p.grant.once != "" {
		if err := p.redeem(); err != nil {
			return err
		}
	}
	to := p.to.prefix
	if p.to.host {
		p.setCookie(p.w.Header())
	} else {
		key, err := p.sandboxKey()
		if err != nil {
			return err
		}
		to += reserved + newPass(passPath, key, p.grant.row.ID, p.grant.port, p.grant.share, p.passUntil())
	}
	p.w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(p.w).Encode(opened{To: to})
}

// redeem uses up the one-time code, on all nodes. A code that was used is a 401.
func (p *request) redeem() error {
	row := p.grant.row
	cmd := fsm.NewCommand(uuid.NewString(), time.Now(), row.UserID, &fsm.SandboxRedeemBody{
		ID: row.ID, Hash: apikey.Hash(p.grant.once), Until: expiryOf(p.grant.once)})
	cmd.Credential = p.grant.credential
	ctx, cancel := context.WithTimeout(p.r.Context(), p.proxy.server.RequestTimeout)
	defer cancel()
	_, err := p.proxy.server.Cluster.Propose(ctx, cmd)
	if fsm.CodeOf(err) == fsm.CodeConflict {
		return response.Unauthorized()
	}
	if err != nil {
		return fmt.Errorf("using the code: %w", err)
	}
	return nil
}

// openScript exchanges the code in the fragment and loads the page without it. A front end may have
// put a path behind the whole link. The template removes comments, and the policy has its hash.
const openScript = `
(async () => {
  const [code, ...more] = (new URLSearchParams(location.hash.slice(1)).get('bivouac') ?? '').split('/')
  const base = document.body.dataset.base
  if (!code) return
  const text = document.getElementById('text')
  text.textContent = 'Opening the sandbox.'
  try {
    const r = await fetch(base + '/.bivouac/open', {method: 'POST', body: JSON.stringify({code})})
    if (r.ok) {
      const page = new URL(location.href)
      page.hash = ''
      page.pathname = (await r.json()).to + location.pathname.slice(base.length) + more.join('/')
      location.replace(page.href)
      return
    }
  } catch {}
  text.textContent = 'This link was used before, or it has expired. Read the sandbox again and take its new link.'
})()
`

// openPage replaces a page for which a browser has no permission.
//
//nolint:gochecknoglobals,lll // read-only; lines of HTML
var openPage = template.Must(template.New("open").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Open a sandbox</title></head>
<body data-base="{{.}}"><h1>No permission for this sandbox</h1>
<p id="text">Open it with a link from the API, or with one that its owner shared.</p>
<script>` + openScript + `</script></body>
</html>
`))

// showOpen responds with openPage. An unknown sandbox looks the same.
func (p *request) showOpen() {
	hash := sha256.Sum256([]byte(openScript))
	h := p.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set(headerPolicy, "default-src 'none'; base-uri 'none'; form-action 'none'; connect-src 'self'; script-src 'sha256-"+
		base64.StdEncoding.EncodeToString(hash[:])+"'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	p.w.WriteHeader(http.StatusUnauthorized)
	base := p.to.prefix
	if p.to.pass != "" {
		base = strings.TrimSuffix(base, reserved+p.to.pass)
	}
	_ = openPage.Execute(p.w, base) // the client may have left
}
