package wire

import (
	"cmp"
	"fmt"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// Config is the cluster's configuration, in the blocks of a node's file. A response has all but LLM;
// a client leaves out what the cluster's protocol version does not keep.
type Config struct {
	// Index is the log index at which it last changed.
	Index  uint64       `json:"index"`
	Policy Policy       `json:"policy"`
	Limits ConfigLimits `json:"limits"`
	Git    *ConfigGit   `json:"git,omitempty"`
	CORS   *ConfigCORS  `json:"cors,omitempty"`
	// LLM is nil in a cluster below fsm.VersionModels, which does not keep it.
	LLM *ConfigLLM `json:"llm,omitempty"`
}

// ConfigLimits are the limits of each user and of the installation.
type ConfigLimits struct {
	User         Limits `json:"user"`
	Installation Limits `json:"installation"`
	OnLimit      string `json:"on_limit"`
}

// ConfigGit configures the checks with git providers.
type ConfigGit struct {
	VerifyTokens bool     `json:"verify_tokens"`
	AllowedHosts []string `json:"allowed_hosts"`
}

// ConfigCORS has the web origins that may call the API with credentials; none is any port of the
// loopback.
type ConfigCORS struct {
	Origins []string `json:"origins"`
}

// ConfigLLM configures the model gateway.
type ConfigLLM struct {
	Gateway bool          `json:"gateway"`
	Hosts   []string      `json:"hosts"`
	Models  []string      `json:"models"`
	Prices  []ConfigPrice `json:"prices"`
	Budgets ConfigBudgets `json:"budgets"`
	// Servers and Profiles are left out where there are none.
	Servers  []fsm.ModelServer  `json:"servers,omitempty"`
	Profiles []fsm.ModelProfile `json:"profiles,omitempty"`
}

// ConfigPrice is a price in US dollars for a million tokens. What is null is Input.
type ConfigPrice struct {
	Model       string   `json:"model"`
	Input       float64  `json:"input"`
	Output      float64  `json:"output"`
	CachedInput *float64 `json:"cached_input"`
	CacheWrite  *float64 `json:"cache_write"`
}

// ConfigBudgets are budgets in US dollars; 0 is none.
type ConfigBudgets struct {
	PerTask    float64 `json:"per_task"`
	PerUserDay float64 `json:"per_user_day"`
}

// PolicyNever disables a policy.
const PolicyNever = "never"

// ConfigOf converts a configuration, without its index.
func ConfigOf(i fsm.Installation) Config {
	return Config{
		Policy: PolicyOf(i.Policy),
		Limits: ConfigLimits{
			User:         Limits(i.PerUser),
			Installation: Limits(i.Overall),
			OnLimit:      cmp.Or(string(i.OnLimit), string(fsm.OnLimitRefuse)),
		},
		Git:  &ConfigGit{VerifyTokens: !i.Git.Unverified, AllowedHosts: append([]string{}, i.Git.AllowedHosts...)},
		CORS: &ConfigCORS{Origins: append([]string{}, i.CORS.Origins...)},
		LLM:  llmOf(i.LLM),
	}
}

// PolicyOf converts a policy.
func PolicyOf(p fsm.Policy) Policy {
	return Policy{
		IdleTimeout:       policyTime(p.IdleTimeout),
		MaxRunning:        policyTime(p.MaxRunning),
		DeletePausedAfter: policyTime(p.DeletePausedAfter),
	}
}

func policyTime(d time.Duration) *string {
	switch {
	case d == 0:
		return nil
	case d < 0:
		return new(PolicyNever)
	}
	return new(d.String())
}

func llmOf(l fsm.LLM) *ConfigLLM {
	c := &ConfigLLM{
		Gateway: !l.Direct,
		Hosts:   append([]string{}, l.HostList()...),
		Models:  append([]string{}, l.Models...),
		Prices:  make([]ConfigPrice, len(l.Prices)),
		Budgets: ConfigBudgets(l.Budgets), Servers: l.Servers, Profiles: l.Profiles,
	}
	for i, p := range l.Prices {
		c.Prices[i] = ConfigPrice(p)
	}
	return c
}

// Installation converts a configuration back. It fails on a time that is none.
func (c Config) Installation() (fsm.Installation, error) {
	i := fsm.Installation{
		PerUser: fsm.Limits(c.Limits.User),
		Overall: fsm.Limits(c.Limits.Installation),
		OnLimit: fsm.OnLimit(c.Limits.OnLimit),
	}
	for _, of := range []struct {
		text *string
		to   *time.Duration
	}{
		{c.Policy.IdleTimeout, &i.Policy.IdleTimeout},
		{c.Policy.MaxRunning, &i.Policy.MaxRunning},
		{c.Policy.DeletePausedAfter, &i.Policy.DeletePausedAfter},
	} {
		switch {
		case of.text == nil:
		case *of.text == PolicyNever:
			*of.to = -1
		default:
			d, err := time.ParseDuration(*of.text)
			if err != nil {
				return fsm.Installation{}, fmt.Errorf("the node's answer: %w", err)
			}
			*of.to = d
		}
	}
	if c.Git != nil {
		i.Git = fsm.Git{Unverified: !c.Git.VerifyTokens, AllowedHosts: c.Git.AllowedHosts}
	}
	if c.CORS != nil {
		i.CORS.Origins = c.CORS.Origins
	}
	if c.LLM != nil {
		i.LLM = c.LLM.fsm()
	}
	return i, nil
}

func (c *ConfigLLM) fsm() fsm.LLM {
	l := fsm.LLM{
		Direct: !c.Gateway, Hosts: c.Hosts, Models: c.Models, Budgets: fsm.Budgets(c.Budgets),
		Servers: c.Servers, Profiles: c.Profiles,
	}
	for _, p := range c.Prices {
		l.Prices = append(l.Prices, fsm.Price(p))
	}
	return l
}
