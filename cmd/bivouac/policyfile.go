package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// The bounds of a policy's durations.
const (
	minPolicyTime = time.Second
	maxPolicyTime = 10 * 365 * 24 * time.Hour
)

// decodePolicy reads the policy block of a node's configuration or of a spec.
func decodePolicy(b *hcl.Block, p *fsm.Policy) hcl.Diagnostics {
	return decodeBody(b.Body, []attr{
		{name: "idle_timeout", set: setPolicyTime(&p.IdleTimeout)},
		{name: "max_running", set: setPolicyTime(&p.MaxRunning)},
		{name: "delete_paused_after", set: setPolicyTime(&p.DeletePausedAfter)},
	}, nil)
}

// setPolicyTime stores a duration; "never" is stored as a negative one.
func setPolicyTime(to *time.Duration) func(cty.Value) error {
	return func(v cty.Value) error {
		if v.Type() != cty.String {
			return errors.New(`must be a duration in quotes, such as "30m", or "never"`)
		}
		d, err := parsePolicyTime(v.AsString())
		if err != nil {
			return err
		}
		*to = d
		return nil
	}
}

// parsePolicyTime parses a policy's duration from a file or a flag.
func parsePolicyTime(s string) (time.Duration, error) {
	if s == wire.PolicyNever {
		return -1, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf(`%q is not a duration such as "30m" or "72h", nor "never"`, s)
	}
	if d < minPolicyTime || d > maxPolicyTime {
		return 0, fmt.Errorf(`must be between %s and %s, or "never"`, minPolicyTime, maxPolicyTime)
	}
	return d, nil
}

// The bounds of limits in configuration files; fsm checks them again.
const (
	maxLimit      = 1 << 30
	maxStateBytes = 1 << 40
	maxEventBytes = 1 << 40
)

// decodeLimits reads the limits of the installation. more are members beside those.
func decodeLimits(b *hcl.Block, l *fsm.Limits, more ...attr) hcl.Diagnostics {
	return decodeBody(b.Body, append([]attr{
		{name: "running_sandboxes", set: setInt(&l.Running, 0, maxLimit)},
		{name: "total_sandboxes", set: setInt(&l.Total, 0, maxLimit)},
		{name: "starts_per_minute", set: setInt(&l.StartsPerMinute, 0, fsm.MaxStartsPerMinute)},
		{name: "cpu", set: setInt(&l.CPU, 0, maxLimit)},
		{name: "memory", set: setInt(&l.Memory, 0, maxLimit)},
		{name: "state_bytes", set: setInt(&l.StateBytes, fsm.MinStateBytes, maxStateBytes)},
	}, more...), nil)
}

// decodeUserLimits reads the limits of one user.
func decodeUserLimits(b *hcl.Block, l *fsm.Limits) hcl.Diagnostics {
	return decodeLimits(b, l, attr{name: "event_bytes", set: setInt(&l.EventBytes, 1, maxEventBytes)})
}
