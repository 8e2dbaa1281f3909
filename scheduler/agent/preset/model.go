package preset

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Model is what is known of a model. The zero Model is unknown in all of it.
type Model struct {
	// Window is the context in tokens, Output the longest answer; 0 is unknown.
	Window, Output int
	// Vision is whether it takes pictures, Tools whether it calls tools; nil is unknown.
	Vision, Tools *bool
	// Rates are its vendor's prices, nil for unknown ones.
	Rates *Rates
}

// Rates are prices in US dollars for a million tokens. CachedInput and CacheWrite are nil where they
// are not known.
type Rates struct {
	Input, Output           float64
	CachedInput, CacheWrite *float64
}

// Tokens are what an answer used. Input includes Cached, which was read from a cache, and Written,
// which was written to one.
type Tokens struct{ Input, Output, Cached, Written int64 }

// Cost is the price of tokens in millionths of a US dollar. A price that is not known is the input's.
func (r Rates) Cost(t Tokens) float64 {
	cached, written := r.Input, r.Input
	if r.CachedInput != nil {
		cached = *r.CachedInput
	}
	if r.CacheWrite != nil {
		written = *r.CacheWrite
	}
	plain := max(0, t.Input-t.Cached-t.Written)
	return float64(plain)*r.Input + float64(t.Cached)*cached + float64(t.Written)*written + float64(t.Output)*r.Output
}

// modelTable is made by ops/agents/modeltable.
//
//go:embed models.tsv
var modelTable string

// dated is what makers add to a model's name: a date, "latest", or a variant of OpenRouter's.
var dated = regexp.MustCompile( //nolint:gochecknoglobals // compiled once, read-only
	`(-latest|-preview|-\d{8}|-\d{4}-\d{2}-\d{2}|:[a-z]+)$`)

// ModelOf returns what the table says of a model, with or without its vendor's prefix. A model of a
// vendor that the table does not have, or of a server of one's own, is described by one of the same
// name elsewhere, without prices.
func ModelOf(name string) Model {
	vendor, known := VendorOf(name)
	bare := strings.ToLower(BareModel(name))
	for _, id := range []string{bare, dated.ReplaceAllString(bare, "")} {
		if !known {
			break
		}
		row := "\n" + vendor.Prefixes[0] + "\t" + id
		if line, found := after(row + "\t"); found {
			return readModel(line)
		}
		if line, found := after(row + "-20"); found { // the name without its date
			_, line, _ = strings.Cut(line, "\t")
			return readModel(line)
		}
	}
	for _, id := range []string{path.Base(bare), dated.ReplaceAllString(path.Base(bare), "")} {
		for _, begin := range []string{"\t", "/"} {
			if line, found := after(begin + id + "\t"); found && id != "" {
				m := readModel(line)
				m.Rates = nil
				return m
			}
		}
	}
	return Model{}
}

// after returns the rest of the table's first line with a text.
func after(text string) (line string, found bool) {
	_, rest, found := strings.Cut(modelTable, text)
	line, _, _ = strings.Cut(rest, "\n")
	return line, found
}

// readModel reads a line of the table from its third column on. All of them call tools: the
// catalogue has no other ones.
func readModel(line string) (m Model) {
	columns := strings.Split(line, "\t")
	if len(columns) != 7 {
		return Model{}
	}
	m.Window, _ = strconv.Atoi(columns[0])
	m.Output, _ = strconv.Atoi(columns[1])
	m.Vision, m.Tools = new(columns[2] == "true"), new(true)
	in, out := number(columns[3]), number(columns[4])
	if in != nil && out != nil {
		m.Rates = &Rates{Input: *in, Output: *out, CachedInput: number(columns[5]), CacheWrite: number(columns[6])}
	}
	return m
}

func number(text string) *float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil
	}
	return &f
}

// Or fills in what m does not know.
func (m Model) Or(other Model) Model {
	return Model{
		Window: cmp.Or(m.Window, other.Window), Output: cmp.Or(m.Output, other.Output),
		Vision: cmp.Or(m.Vision, other.Vision), Tools: cmp.Or(m.Tools, other.Tools), Rates: cmp.Or(m.Rates, other.Rates),
	}
}

// listed is a model in a server's list.
type listed struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Model string `json:"model"`
	// The window, by the server's name for it.
	VLLM       size `json:"max_model_len"`
	OpenRouter size `json:"context_length"`     // Together and Ollama's list of running models, too
	Groq       size `json:"context_window"`     // Fireworks, too
	Mistral    size `json:"max_context_length"` // LM Studio, too
	Loaded     size `json:"loaded_context_length"`
	Anthropic  size `json:"max_input_tokens"`
	Meta       struct {
		// Run is a slot's, Train the one that the model was trained with.
		Run   size `json:"n_ctx"`
		Train size `json:"n_ctx_train"`
	} `json:"meta"`
	Output   size `json:"max_completion_tokens"`
	Provider struct {
		Window size `json:"context_length"`
		Output size `json:"max_completion_tokens"`
	} `json:"top_provider"`
	Architecture struct {
		Inputs []string `json:"input_modalities"`
	} `json:"architecture"`
	Parameters   []string        `json:"supported_parameters"`
	Capabilities json.RawMessage `json:"capabilities"`
}

// size is a number of tokens. What is no number is 0, so that one odd member spoils no list.
type size int

// UnmarshalJSON implements json.Unmarshaler.
func (s *size) UnmarshalJSON(text []byte) error {
	if n, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64); err == nil && n > 0 && n < math.MaxInt32 {
		*s = size(n)
	}
	return nil
}

// ListedModel returns what a server's list of models says of one, by its name without a prefix: the
// answer of GET /v1/models of vLLM, llama.cpp, OpenRouter, Together, Groq, Mistral and others, or of
// Ollama's GET /api/ps. A list of one model is about that one, whatever its name. Prices are not
// read. It returns false for a list without the model.
func ListedModel(list []byte, name string) (m Model, found bool) {
	var in struct {
		Data   []json.RawMessage `json:"data"`
		Models []json.RawMessage `json:"models"`
	}
	if json.Unmarshal(list, &in) != nil {
		return Model{}, false
	}
	all := in.Data
	if len(all) == 0 {
		all = in.Models
	}
	for _, text := range all {
		var one listed
		if json.Unmarshal(text, &one) == nil && (one.is(name) || len(all) == 1) {
			return one.model(), true
		}
	}
	return Model{}, false
}

func (l listed) is(name string) bool {
	for _, id := range []string{l.ID, l.Name, l.Model} {
		if id != "" && (id == name || id == name+":latest" || strings.EqualFold(id, name)) {
			return true
		}
	}
	return false
}

func (l listed) model() (m Model) {
	m.Window = int(cmp.Or(
		l.Loaded, l.VLLM, l.Meta.Run, l.Provider.Window, l.OpenRouter, l.Groq, l.Mistral, l.Anthropic, l.Meta.Train,
	))
	m.Output = int(max(l.Output, l.Provider.Output))
	if inputs := l.Architecture.Inputs; len(inputs) > 0 {
		m.Vision = new(slices.Contains(inputs, "image"))
	}
	if len(l.Parameters) > 0 {
		m.Tools = new(slices.Contains(l.Parameters, "tools"))
	}
	var named []string
	var flags struct {
		Vision *bool `json:"vision"`
		Tools  *bool `json:"function_calling"`
	}
	if json.Unmarshal(l.Capabilities, &named) == nil { // Ollama, llama.cpp and LM Studio
		if slices.Contains(named, "vision") || slices.Contains(named, "multimodal") {
			m.Vision = new(true)
		}
		if slices.Contains(named, "tools") || slices.Contains(named, "tool_use") {
			m.Tools = new(true)
		}
	} else if json.Unmarshal(l.Capabilities, &flags) == nil { // Mistral
		m.Vision, m.Tools = flags.Vision, flags.Tools
	}
	return m
}
