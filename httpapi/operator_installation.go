package httpapi

import (
	"bivouac.dev/bivouac/fsm"
)

// installationBody is the cluster-wide configuration.
type installationBody struct {
	Policy  policyBody `json:"policy"`
	Limits  limitsBody `json:"limits"`
	PerUser limitsBody `json:"per_user"`
	OnLimit string     `json:"on_limit"`
}

func newInstallationBody(i fsm.Installation) installationBody {
	b := installationBody{
		Policy: policyBody{policyTime(i.Policy.IdleTimeout), policyTime(i.Policy.MaxRunning), policyTime(i.Policy.DeletePausedAfter)},
		Limits: limitsBody(i.Overall), PerUser: limitsBody(i.PerUser), OnLimit: string(i.OnLimit),
	}
	if b.OnLimit == "" {
		b.OnLimit = string(fsm.OnLimitRefuse)
	}
	return b
}

// handleInstallationGet handles GET /api/v1/operator/installation.
func (s *Server) handleInstallationGet(c *call) (answer, error) {
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	return ok(newInstallationBody(v.Installation()))
}

// handleInstallationPut handles PUT /api/v1/operator/installation. It replaces the policy, the
// overall limits, the limits per user and on_limit. An absent member is reset.
func (s *Server) handleInstallationPut(c *call) (answer, error) {
	o := c.object()
	body := &fsm.InstallationConfigureBody{}
	i := &body.Installation
	if p := readPolicy(o); p != nil {
		i.Policy = *p
	}
	if l := readLimits(o, "limits"); l != nil {
		i.Overall = *l
	}
	if l := readLimits(o, "per_user"); l != nil {
		i.PerUser = *l
	}
	if on := o.Text("on_limit", fsm.MaxName); on != nil {
		i.OnLimit = fsm.OnLimit(*on)
	}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if err := fsm.Validate(body); err != nil {
		return answer{}, err
	}
	if _, err := c.propose(body); err != nil {
		return answer{}, err
	}
	v, err := c.after()
	if err != nil {
		return answer{}, err
	}
	return ok(newInstallationBody(v.Installation()))
}
