package proxy

import "testing"

func TestConfig_Validate(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no scheme": func(c *Config) { c.PublicURL = "example.org" },
		"path":      func(c *Config) { c.PublicURL = "https://example.org/x" },
		"user":      func(c *Config) { c.PublicURL = "https://u@example.org" },
		"capitals":  func(c *Config) { c.Domain = "Example.org" },
		"port":      func(c *Config) { c.Domain = "example.org:80" }, "dot": func(c *Config) { c.Domain = ".example.org" },
		"below":   func(c *Config) { c.Domain, c.PublicURL = "example.org", "https://api.example.org" },
		"no wait": func(c *Config) { c.StartWait = 0 }, "no dial": func(c *Config) { c.DialTimeout = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if c.Validate() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	c := DefaultConfig()
	c.PublicURL, c.Domain = "https://bivouac.example.org", "sandboxes.example.org"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
