package proxy

import (
	"net/http"
	"net/url"

	"bivouac.dev/bivouac/fsm"
)

// SandboxAt returns the sandbox and the port that an address at the proxy names, nil for none. Whose
// sandbox it is is the caller's question.
func (d *Proxy) SandboxAt(v *fsm.View, at *url.URL) (*fsm.Sandbox, string) {
	to, ours := targetOf(d.cfg.Domain, at.Host, at.EscapedPath())
	if !ours {
		return nil, ""
	}
	return to.find(v)
}

// ServeAs serves a request to a sandbox's agent server for the sandbox's owner, whose credential the
// caller has found good in View. The cluster confirms it as that of a request to the sandbox itself.
// The request's path is the agent server's. When it returns an error, nothing was written yet.
func (d *Proxy) ServeAs(w http.ResponseWriter, r *http.Request, row *fsm.Sandbox, by fsm.Credential) error {
	p := &request{
		proxy: d, r: r, w: newWriter(w), grant: grant{row: row, port: fsm.PortAgentServer, credential: by},
		to: target{
			id: row.ID, name: fsm.PortAgentServer, prefix: Path + row.ID + "/" + fsm.PortAgentServer,
			rest: r.URL.EscapedPath(),
		},
	}
	defer func() { d.metrics.request(p.grant.port, p.w.outcome()) }()
	end, err := p.enterConfirmed()
	if err != nil {
		p.w.note(err)
		return err
	}
	defer end()
	return p.forward()
}

// enterConfirmed is enter after the cluster has confirmed the grant.
func (p *request) enterConfirmed() (end func(), err error) {
	if p.grant, err = p.proxy.confirm(p.r.Context(), p.grant); err != nil {
		return nil, err
	}
	return p.enter()
}
