package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// LLMConfig configures the model gateway.
type LLMConfig struct {
	Gateway bool        `hcl:"gateway"`
	Hosts   []string    `hcl:"hosts"`
	Models  []string    `hcl:"models"`
	Prices  []fsm.Price `hcl:"prices"`
	Budgets LLMBudgets  `hcl:"budgets"`

	Servers  []fsm.ModelServer  `hcl:"servers"`
	Profiles []fsm.ModelProfile `hcl:"profiles"`
}

// LLMBudgets are budgets in US dollars; 0 is none.
type LLMBudgets struct {
	PerTask    float64 `hcl:"per_task"`
	PerUserDay float64 `hcl:"per_user_day"`
}

// maxDollars bounds prices and budgets; fsm checks them again.
const maxDollars = 1e6

func (c *LLMConfig) decode(b *hcl.Block) hcl.Diagnostics {
	return decodeBody(b.Body, []attr{
		{name: "gateway", set: setBool(&c.Gateway)},
		{name: "hosts", set: c.setHosts},
		{name: "models", set: setStrings(&c.Models, fsm.CheckModel)},
		{name: "prices", set: c.setPrices},
		{name: "servers", set: setObjects(&c.Servers)},
		{name: "profiles", set: setObjects(&c.Profiles)},
	}, []nested{{name: "budgets", decode: func(b *hcl.Block) hcl.Diagnostics {
		return decodeBody(b.Body, []attr{
			{name: "per_task", set: setFloat(&c.Budgets.PerTask, 0, maxDollars)},
			{name: "per_user_day", set: setFloat(&c.Budgets.PerUserDay, 0, maxDollars)},
		}, nil)
	}}})
}

// setObjects stores a list of objects whose members have the names of JSON's. fsm and the gateway
// check what they say.
func setObjects[T any](to *[]T) func(cty.Value) error {
	return func(v cty.Value) error {
		if t := v.Type(); !t.IsTupleType() && !t.IsListType() {
			return errors.New("must be a list of objects { … }")
		}
		text, err := ctyjson.Marshal(v, v.Type())
		if err != nil {
			return err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(to); err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "json: "))
		}
		return nil
	}
}

// setHosts stores the list of hosts. An empty one could be read as none or as the default.
func (c *LLMConfig) setHosts(v cty.Value) error {
	if err := setStrings(&c.Hosts, llm.CheckHost)(v); err != nil {
		return err
	}
	if len(c.Hosts) == 0 {
		return fmt.Errorf("the list is empty: name a host, or leave it out for %q", fsm.HostsVendors)
	}
	return nil
}

// setPrices stores the price table, sorted by model.
func (c *LLMConfig) setPrices(v cty.Value) error {
	if t := v.Type(); !t.IsTupleType() && !t.IsListType() {
		return errors.New(`must be a list such as [{ model = "gpt-*", input = 1.25, output = 10 }]`)
	}
	c.Prices = []fsm.Price{}
	for it := v.ElementIterator(); it.Next(); {
		_, one := it.Element()
		p, err := priceOf(one)
		if err != nil {
			return fmt.Errorf("member %d: %w", len(c.Prices)+1, err)
		}
		if slices.ContainsFunc(c.Prices, func(o fsm.Price) bool { return o.Model == p.Model }) {
			return fmt.Errorf("member %d: %q has a price already: remove one", len(c.Prices)+1, p.Model)
		}
		c.Prices = append(c.Prices, p)
	}
	slices.SortFunc(c.Prices, func(a, b fsm.Price) int { return cmp.Compare(a.Model, b.Model) })
	return nil
}

// priceOf reads a member of prices.
func priceOf(v cty.Value) (p fsm.Price, err error) {
	if v.IsNull() || !v.Type().IsObjectType() {
		return p, errors.New(`must be { model = "...", input = ..., output = ... }`)
	}
	number := func(to **float64) func(cty.Value) error {
		return func(v cty.Value) error {
			*to = new(float64)
			return setFloat(*to, 0, maxDollars)(v)
		}
	}
	var input, output *float64
	known := []attr{
		{name: "model", required: true, set: setString(&p.Model, fsm.CheckModel)},
		{name: "input", required: true, set: number(&input)},
		{name: "output", required: true, set: number(&output)},
		{name: "cached_input", set: number(&p.CachedInput)},
		{name: "cache_write", set: number(&p.CacheWrite)},
	}
	members := v.AsValueMap()
	for _, a := range known {
		value, there := members[a.name]
		delete(members, a.name)
		switch {
		case !there && a.required:
			return p, fmt.Errorf("%s is missing", a.name)
		case !there:
			continue
		case value.IsNull():
			return p, fmt.Errorf("%s: must not be null", a.name)
		}
		if err := a.set(value); err != nil {
			return p, fmt.Errorf("%s: %w", a.name, err)
		}
	}
	for name := range members {
		return p, fmt.Errorf("%q is not expected here: a price has model, input, output, cached_input and cache_write", name)
	}
	p.Input, p.Output = *input, *output
	return p, nil
}

// fsm converts the block.
func (c *LLMConfig) fsm() fsm.LLM {
	return fsm.LLM{
		Direct: !c.Gateway, Hosts: c.Hosts, Models: c.Models, Prices: c.Prices, Budgets: fsm.Budgets(c.Budgets),
		Servers: c.Servers, Profiles: c.Profiles,
	}
}

// llmHCL is the block as a file has it.
func llmHCL(i *wire.ConfigLLM) string {
	var b strings.Builder
	amount := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	fmt.Fprintf(&b, "llm {\n  gateway = %t\n  hosts   = %s\n  models  = %s\n  prices = [", i.Gateway, hclList(i.Hosts),
		hclList(i.Models))
	for _, p := range i.Prices {
		fmt.Fprintf(&b, "\n    { model = %s, input = %s, output = %s", hclText(p.Model), amount(p.Input), amount(p.Output))
		if p.CachedInput != nil {
			fmt.Fprintf(&b, ", cached_input = %s", amount(*p.CachedInput))
		}
		if p.CacheWrite != nil {
			fmt.Fprintf(&b, ", cache_write = %s", amount(*p.CacheWrite))
		}
		b.WriteString(" },")
	}
	if len(i.Prices) > 0 {
		b.WriteString("\n  ")
	}
	b.WriteString("]\n")
	writeObjects(&b, "servers", i.Servers)
	writeObjects(&b, "profiles", i.Profiles)
	fmt.Fprintf(&b, "\n  budgets {\n    per_task     = %s\n    per_user_day = %s\n  }\n}\n",
		amount(i.Budgets.PerTask), amount(i.Budgets.PerUserDay))
	return b.String()
}

// writeObjects writes a list of objects as setObjects reads it, nothing for none.
func writeObjects[T any](b *strings.Builder, name string, of []T) {
	if len(of) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s = [", name)
	for _, one := range of {
		var value ctyjson.SimpleJSONValue
		text, err := json.Marshal(one)
		if err == nil {
			err = json.Unmarshal(text, &value)
		}
		if err != nil {
			continue // unreachable: texts, numbers and booleans
		}
		fmt.Fprintf(b, "\n%s,", hclwrite.TokensForValue(value.Value).Bytes())
	}
	b.WriteString("\n  ]\n")
}

// hclText is a text in a file: as Go quotes it, "${" would begin a template.
func hclText(s string) string {
	return string(hclwrite.TokensForValue(cty.StringVal(s)).Bytes())
}

// hclList is a list of texts in a file.
func hclList(of []string) string {
	texts := make([]string, len(of))
	for i, s := range of {
		texts[i] = hclText(s)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
