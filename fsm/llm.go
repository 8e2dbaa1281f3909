package fsm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LLM configures the model gateway. The zero LLM has the gateway on, for the vendors' hosts and every
// model, without prices and budgets.
type LLM struct {
	// Direct hands the owners' model keys to their sandboxes, as upstream does.
	Direct bool `json:"direct,omitempty"`
	// Hosts are what the gateway may connect to: host names ("llm.example.org", "host:port",
	// "*.example.org"), HostsVendors, and addresses or prefixes ("10.1.2.0/24"). Private and loopback
	// addresses need an address or prefix here, whatever name leads to them. None means the vendors'.
	Hosts []string `json:"hosts,omitempty"`
	// Models are the models that users may use: names, also with a provider before a slash, and
	// beginnings that end with "*". None means every model.
	Models []string `json:"models,omitempty"`
	// Prices is the price table, sorted by Model. A model without one costs nothing, and no budget
	// stops it: "*" prices those without another.
	Prices  []Price `json:"prices,omitempty"`
	Budgets Budgets `json:"budgets,omitzero"`
	// Servers and Profiles say more of single servers and models. They are kept from VersionServers on.
	Servers  []ModelServer  `json:"servers,omitempty"`
	Profiles []ModelProfile `json:"profiles,omitempty"`
}

// HostsVendors stands for the hosts of the known vendors of models, HostLocal for this machine.
const (
	HostsVendors = "vendors"
	HostLocal    = "localhost"
)

// Price is the price of a model, in US dollars for a million tokens.
type Price struct {
	// Model is a name as in LLM.Models. The longest that matches counts.
	Model  string  `json:"model"`
	Input  float64 `json:"input"`
	Output float64 `json:"output"`
	// CachedInput is for input that the vendor had cached, CacheWrite for input that it caches. nil is
	// the price of other input.
	CachedInput *float64 `json:"cached_input,omitempty"`
	CacheWrite  *float64 `json:"cache_write,omitempty"`
}

// Budgets bound what models may cost, in US dollars; 0 is no bound. A user's max_budget_per_task
// counts beside PerTask, and the lower one binds.
type Budgets struct {
	PerTask float64 `json:"per_task,omitempty"`
	// PerUserDay is for a user and a day (UTC).
	PerUserDay float64 `json:"per_user_day,omitempty"`
}

// maxPrice bounds a price and a budget, in dollars.
const maxPrice = 1e6

// MatchesModel reports whether a name of a model, with or without a provider before it, is what a
// pattern of LLM.Models means.
func MatchesModel(pattern, name string) bool {
	matches := func(name string) bool {
		start, open := strings.CutSuffix(pattern, "*")
		return name == pattern || open && strings.HasPrefix(name, start)
	}
	_, bare, _ := strings.Cut(name, "/")
	return matches(name) || bare != "" && matches(bare)
}

// Allows reports whether users may use a model.
func (l LLM) Allows(model string) bool {
	return len(l.Models) == 0 || slices.ContainsFunc(l.Models, func(p string) bool { return MatchesModel(p, model) })
}

// PriceOf returns the price of a model, nil if it has none.
func (l LLM) PriceOf(model string) (best *Price) {
	for i := range l.Prices {
		if p := &l.Prices[i]; MatchesModel(p.Model, model) && (best == nil || len(p.Model) > len(best.Model)) {
			best = p
		}
	}
	return best
}

// CheckModelHost returns an error if s is no member of LLM.Hosts. Of addresses it checks the form
// alone: a text that is no id names nobody.
func CheckModelHost(s string) error {
	addr, bits, prefix := strings.Cut(s, "/")
	if _, err := strconv.ParseUint(bits, 10, 7); prefix && err == nil && strings.ContainsAny(addr, ".:") &&
		CheckHost(addr) == nil {
		return nil
	}
	if name, star := strings.CutPrefix(s, "*."); CheckHost(s) != nil || star && CheckHost(name) != nil ||
		!star && strings.Contains(s, "*") {
		return fmt.Errorf(
			"%q must be a host name, \"host:port\", \"*.example.org\", %q, or an address or prefix such as \"10.1.2.0/24\"",
			clip(s),
			HostsVendors,
		)
	}
	return nil
}

// CheckModel returns an error if s is no member of LLM.Models.
func CheckModel(s string) error {
	if s == "" || len(s) > maxListedText || strings.ContainsAny(s, " \t\r\n\"") ||
		strings.Contains(strings.TrimSuffix(s, "*"), "*") {
		return fmt.Errorf("%q must be the name of a model, or its beginning and \"*\"", clip(s))
	}
	return nil
}

// models checks the gateway's configuration.
func (r *rules) models(l LLM) {
	r.check(len(l.Hosts) <= maxListed && len(l.Models) <= maxListed &&
		len(l.Prices) <= maxListed, "llm: a list has at most %d members", maxListed)
	for _, host := range l.Hosts {
		err := CheckModelHost(host)
		r.check(err == nil, "llm's hosts: %v", err)
	}
	for _, model := range l.Models {
		err := CheckModel(model)
		r.check(err == nil, "llm's models: %v", err)
	}
	for i, p := range l.Prices {
		err := CheckModel(p.Model)
		r.check(err == nil, "llm's prices: %v", err)
		r.check(i == 0 || l.Prices[i-1].Model != p.Model, "llm's prices: %q has two prices: remove one", clip(p.Model))
		r.check(i == 0 || l.Prices[i-1].Model <= p.Model, "llm's prices must be sorted by model")
		for _, price := range []*float64{&p.Input, &p.Output, p.CachedInput, p.CacheWrite} {
			r.check(price == nil || *price >= 0 && *price <= maxPrice,
				"llm's prices: the price of %q must be between 0 and %g dollars", clip(p.Model), maxPrice)
		}
	}
	r.servers(l)
	for _, budget := range []float64{l.Budgets.PerTask, l.Budgets.PerUserDay} {
		r.check(budget >= 0 && budget <= maxPrice, "llm's budgets must be between 0 and %g dollars", maxPrice)
	}
}

// plain returns l with nil for empty lists, and for the vendors' hosts alone.
func (l LLM) plain() LLM {
	l.Hosts, l.Models, l.Prices = append([]string(nil),
		l.Hosts...), append([]string(nil), l.Models...), append([]Price(nil), l.Prices...)
	l.Servers, l.Profiles = slices.Clone(l.Servers), append([]ModelProfile(nil), l.Profiles...)
	for i := range l.Servers {
		if len(l.Servers[i].Headers) == 0 {
			l.Servers[i].Headers = nil
		}
	}
	if len(l.Servers) == 0 {
		l.Servers = nil
	}
	if len(l.Hosts) == 1 && l.Hosts[0] == HostsVendors {
		l.Hosts = nil
	}
	return l
}

// HostList is Hosts as in a file: the vendors' are named where nothing else is.
func (l LLM) HostList() []string {
	if len(l.Hosts) == 0 {
		return []string{HostsVendors}
	}
	return l.Hosts
}

// values lists the settings as Installation.values does.
func (l LLM) values() []Difference {
	prices := make([]string, len(l.Prices))
	for i, p := range l.Prices {
		prices[i] = fmt.Sprintf("%s %s/%s/%s/%s", p.Model, dollars(&p.Input), dollars(&p.Output), dollars(p.CachedInput),
			dollars(p.CacheWrite))
	}
	servers, profiles := make([]string, len(l.Servers)), make([]string, len(l.Profiles))
	for i, s := range l.Servers {
		servers[i] = s.text()
	}
	for i, p := range l.Profiles {
		profiles[i] = p.text()
	}
	return []Difference{
		{Name: "llm.gateway", Has: fmt.Sprint(!l.Direct)},
		{Name: "llm.hosts", Has: listText(l.HostList())},
		{Name: "llm.models", Has: listText(l.Models)},
		{Name: "llm.prices", Has: listText(prices)},
		{Name: "llm.budgets.per_task", Has: dollars(&l.Budgets.PerTask)},
		{Name: "llm.budgets.per_user_day", Has: dollars(&l.Budgets.PerUserDay)},
		{Name: "llm.servers", Has: listText(servers)},
		{Name: "llm.profiles", Has: listText(profiles)},
	}
}

// dollars is an amount as in a file, "-" for none.
func dollars(amount *float64) string {
	if amount == nil {
		return "-"
	}
	return strconv.FormatFloat(*amount, 'f', -1, 64)
}
