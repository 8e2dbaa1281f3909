package operators

import (
	"cmp"
	"fmt"
	"slices"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/llm"
)

// readLLM reads the member llm of a configuration.
func readLLM(o decode.Object) (l fsm.LLM) {
	in, there := o.Object("llm")
	if !there {
		return fsm.LLM{}
	}
	in.Strict("gateway", "hosts", "models", "prices", "budgets", "servers", "profiles")
	l.Direct = !in.BooleanOr("gateway", true)
	if l.Hosts = in.Texts("hosts", fsm.MaxText); l.Hosts != nil && len(l.Hosts) == 0 {
		in.Rule("hosts", fmt.Sprintf("the list is empty: name a host, or leave it out for %q", fsm.HostsVendors))
	}
	for _, host := range l.Hosts {
		if err := llm.CheckHost(host); err != nil {
			in.Rule("hosts", err.Error())
		}
	}
	l.Models = in.Texts("models", fsm.MaxText)
	if in.Has("prices") {
		for _, p := range in.Elements("prices", false) {
			l.Prices = append(l.Prices, readPrice(p))
		}
	}
	slices.SortStableFunc(l.Prices, func(a, b fsm.Price) int { return cmp.Compare(a.Model, b.Model) })
	if b, there := in.Object("budgets"); there {
		b.Strict("per_task", "per_user_day")
		l.Budgets = fsm.Budgets{PerTask: orZero(b.Number("per_task")), PerUserDay: orZero(b.Number("per_user_day"))}
	}
	if in.Has("servers") {
		for _, s := range in.Elements("servers", false) {
			l.Servers = append(l.Servers, readServer(s))
		}
	}
	if in.Has("profiles") {
		for _, p := range in.Elements("profiles", false) {
			l.Profiles = append(l.Profiles, readModelProfile(p))
		}
	}
	return l
}

// readServer reads a member of servers.
func readServer(o decode.Object) (s fsm.ModelServer) {
	o.Strict("host", "ca", "headers", "slots")
	s.Host, s.CA = o.MustText("host", fsm.MaxText), decode.OrZero(o.Text("ca", fsm.MaxParagraph))
	if err := llm.CheckCA(s.CA); err != nil {
		o.Rule("ca", err.Error())
	}
	if headers, there := o.Dict("headers"); there {
		s.Headers = headers.TextMap(fsm.MaxName, fsm.MaxText)
	}
	s.Slots = decode.OrZero(o.Integer("slots"))
	return s
}

// readModelProfile reads a member of profiles.
func readModelProfile(o decode.Object) (p fsm.ModelProfile) {
	o.Strict("model", "max_input_tokens", "max_output_tokens", "temperature", "timeout", "num_retries", "stream",
		"disable_vision", "native_tool_calling")
	p.Model = o.MustText("model", fsm.MaxText)
	p.MaxInputTokens, p.MaxOutputTokens = o.Integer("max_input_tokens"), o.Integer("max_output_tokens")
	p.Temperature = o.Number("temperature")
	p.Timeout, p.NumRetries = o.Integer("timeout"), o.Integer("num_retries")
	p.Stream, p.DisableVision = o.Boolean("stream"), o.Boolean("disable_vision")
	p.NativeToolCalling = o.Boolean("native_tool_calling")
	return p
}

// readPrice reads a member of prices. A forgotten input or output would be free.
func readPrice(o decode.Object) (p fsm.Price) {
	o.Strict("model", "input", "output", "cached_input", "cache_write")
	p.Model = o.MustText("model", fsm.MaxText)
	for _, of := range []struct {
		name string
		to   *float64
	}{{"input", &p.Input}, {"output", &p.Output}} {
		if o.Require(of.name) && o.NotNull(of.name, decode.KindFloat) {
			*of.to = orZero(o.Number(of.name))
		}
	}
	p.CachedInput, p.CacheWrite = o.Number("cached_input"), o.Number("cache_write")
	return p
}

func orZero(n *float64) float64 {
	if n == nil {
		return 0
	}
	return *n
}
