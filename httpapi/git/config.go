package git

import (
	"fmt"
	"time"
)

// Config configures the checks with git providers. Start from DefaultConfig.
type Config struct {
	// VerifyTokens makes the node check each token with its provider before storing it.
	VerifyTokens bool
	// Schemes are the URL schemes allowed for provider hosts.
	Schemes []string
	// AllowedHosts are provider hosts ("git.example.org" or "host:port") that may have a private,
	// loopback or link-local address.
	AllowedHosts []string
	// Timeout limits one request to a provider.
	Timeout time.Duration
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{VerifyTokens: true, Schemes: []string{"https"}, Timeout: 10 * time.Second}
}

// Validate returns an error for the first invalid field.
func (c Config) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("Git.Timeout must be positive, is %s", c.Timeout)
	}
	for _, s := range c.Schemes {
		if s != "https" && s != "http" {
			return fmt.Errorf("Git.Schemes may hold https and http, not %q", s)
		}
	}
	return nil
}
