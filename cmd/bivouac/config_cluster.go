package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// installation returns the cluster's configuration in a node's file.
func (c Config) installation() fsm.Installation {
	return fsm.Installation{
		Policy: c.Policy, PerUser: c.Limits.User, Overall: c.Limits.Installation, OnLimit: c.Limits.OnLimit,
		Git:  fsm.Git{Unverified: !c.Git.VerifyTokens, AllowedHosts: c.Git.AllowedHosts},
		CORS: fsm.CORS{Origins: c.CORS.Origins}, LLM: c.LLM.fsm(),
	}
}

// isClusters reports whether a setting of the file is the cluster's. It seeds a cluster that has
// none and is ignored afterwards.
func isClusters(name string) bool {
	block, _, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"policy", "git", "cors", blockLLM}, block) ||
		slices.ContainsFunc([]string{"limits.user", "limits.installation", "limits.on_limit"},
			func(of string) bool { return strings.HasPrefix(name, of) })
}

// noteSeeds notes which of the cluster's blocks the file has.
func (c *Config) noteSeeds(name string, decode func(*hcl.Block) hcl.Diagnostics) func(*hcl.Block) hcl.Diagnostics {
	return func(b *hcl.Block) hcl.Diagnostics {
		c.Seeds = append(c.Seeds, name)
		return decode(b)
	}
}

// seedDifferences lists the settings in which the cluster's blocks of a node's file differ from the
// configuration in force.
func seedDifferences(v *fsm.View, file fsm.Installation, seeds []string) (list []fsm.Difference) {
	if !v.Configured() {
		return nil
	}
	for _, d := range v.Installation().Differences(file) {
		of := blockOf(d.Name)
		kept := v.ConfigIndex() > 0 || of != "git" && of != "cors" && of != blockLLM
		if of == blockLLM && !v.Active(fsm.VersionModels) {
			kept = false
		}
		if kept && slices.Contains(seeds, of) {
			list = append(list, d)
		}
	}
	return list
}

// blockLLM is the model gateway's block.
const blockLLM = "llm"

// blockOf is the block that a setting of the cluster stands in, as in Config.Seeds.
func blockOf(name string) string {
	switch {
	case name == "limits.on_limit":
		return name
	case strings.HasPrefix(name, blockLLM+"."):
		return blockLLM
	}
	return name[:strings.LastIndex(name, ".")]
}

// differenceText is a difference between what is in force and a file.
func differenceText(d fsm.Difference) string {
	return fmt.Sprintf("%s: in force %s, in the file %s", d.Name, d.Has, d.Wants)
}

// differenceTexts returns the differences of a view as texts.
func differenceTexts(differs func(*fsm.View) []fsm.Difference) func(*fsm.View) []string {
	return func(v *fsm.View) (list []string) {
		for _, d := range differs(v) {
			list = append(list, differenceText(d))
		}
		return list
	}
}

// decodeClusterFile reads a file that has blocks of the cluster's configuration and no others. What
// is absent has its default.
func decodeClusterFile(body hcl.Body) (fsm.Installation, error) {
	c := defaultConfig()
	blocks := c.clusterBlocks()
	blocks = append(blocks, nested{name: "limits", decode: func(b *hcl.Block) hcl.Diagnostics {
		c.Seeds = append(c.Seeds, "limits")
		attrs, blocks := c.Limits.clusterLimits(&c)
		return decodeBody(b.Body, attrs, blocks)
	}})
	if err := diagsError(decodeBody(body, nil, blocks)); err != nil {
		return fsm.Installation{}, err
	}
	if len(c.Seeds) == 0 {
		return fsm.Installation{}, usagef("the file has none of the blocks policy, limits, git, cors and llm")
	}
	return c.installation(), nil
}

// clusterBlocks are the blocks that are the cluster's as a whole.
func (c *Config) clusterBlocks() []nested {
	return []nested{
		{
			name:   "policy",
			decode: c.noteSeeds("policy", func(b *hcl.Block) hcl.Diagnostics { return decodePolicy(b, &c.Policy) }),
		},
		{name: "git", decode: c.noteSeeds("git", c.Git.decode)},
		{name: "cors", decode: c.noteSeeds("cors", c.CORS.decode)},
		{name: blockLLM, decode: c.noteSeeds(blockLLM, c.LLM.decode)},
	}
}

// clusterLimits are the members of limits that are the cluster's.
func (c *LimitsConfig) clusterLimits(in *Config) ([]attr, []nested) {
	onLimit := setString((*string)(&c.OnLimit), oneOf(string(fsm.OnLimitRefuse), string(fsm.OnLimitPauseOldest)))
	return []attr{{name: "on_limit", set: func(v cty.Value) error {
			in.Seeds = append(in.Seeds, "limits.on_limit")
			return onLimit(v)
		}}}, []nested{
			{
				name:   "user",
				decode: in.noteSeeds("limits.user", func(b *hcl.Block) hcl.Diagnostics { return decodeUserLimits(b, &c.User) }),
			},
			{
				name: "installation",
				decode: in.noteSeeds("limits.installation",
					func(b *hcl.Block) hcl.Diagnostics { return decodeLimits(b, &c.Installation) }),
			},
		}
}

// configHCL is the configuration as a file for `bivouac config set`.
func configHCL(c wire.Config) string {
	var b strings.Builder
	never := func(s *string) string {
		if s == nil {
			return hclText(wire.PolicyNever)
		}
		return hclText(*s)
	}
	fmt.Fprintf(&b, "# index %d\n\npolicy {\n  idle_timeout        = %s\n  max_running         = %s\n  "+
		"delete_paused_after = %s\n}\n\nlimits {\n  on_limit = %s\n",
		c.Index, never(c.Policy.IdleTimeout), never(c.Policy.MaxRunning), never(c.Policy.DeletePausedAfter),
		hclText(c.Limits.OnLimit))
	for _, of := range []struct {
		name string
		l    wire.Limits
	}{{"user", c.Limits.User}, {"installation", c.Limits.Installation}} {
		fmt.Fprintf(&b, "\n  %s {\n    running_sandboxes = %d\n    total_sandboxes   = %d\n    starts_per_minute = %d\n    "+
			"cpu               = %d\n    memory            = %d\n",
			of.name, of.l.Running, of.l.Total, of.l.StartsPerMinute, of.l.CPU, of.l.Memory)
		if of.l.StateBytes > 0 { // 0 is the default
			fmt.Fprintf(&b, "    state_bytes       = %d\n", of.l.StateBytes)
		}
		if of.l.EventBytes > 0 {
			fmt.Fprintf(&b, "    event_bytes       = %d\n", of.l.EventBytes)
		}
		b.WriteString("  }\n")
	}
	b.WriteString("}\n")
	if c.Git != nil {
		fmt.Fprintf(&b, "\ngit {\n  verify_tokens = %t\n  allowed_hosts = %s\n}\n", c.Git.VerifyTokens,
			hclList(c.Git.AllowedHosts))
	}
	if c.CORS != nil {
		fmt.Fprintf(&b, "\ncors {\n  origins = %s\n}\n", hclList(c.CORS.Origins))
	}
	if c.LLM != nil {
		b.WriteString("\n" + llmHCL(c.LLM))
	}
	return b.String()
}
