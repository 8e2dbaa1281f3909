package native

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

const (
	// listTime bounds the question for a server's list of models, largestList its answer, in bytes.
	listTime    = 5 * time.Second
	largestList = 8 << 20
)

// profile is what is known of the model: what the settings say counts first, then what its server
// lists, then the table.
type profile struct {
	mu                  sync.Mutex
	told, listed, table preset.Model
	// asked is set once the server was asked. A question for nothing is spared.
	asked bool
}

func newProfile(llm engine.LLM) *profile {
	p := &profile{table: preset.ModelOf(llm.Model)}
	if p.table.Rates == nil { // a model of the same name: its server may have no pictures, or another form of it
		p.table.Vision, p.table.Tools = nil, nil
	}
	p.told.Window = llm.MaxInputTokens
	if n := llm.MaxOutputTokens; n != nil {
		p.told.Output = *n
	}
	if off := llm.DisableVision; off != nil {
		p.told.Vision = new(!*off)
	}
	p.told.Tools = llm.NativeToolCalling
	p.asked = p.told.Window > 0 || p.table.Rates != nil
	return p
}

func (p *profile) get() preset.Model {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told.Or(p.listed).Or(p.table)
}

// mayAsk reports whether the server is to be asked, once.
func (p *profile) mayAsk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	may := !p.asked
	p.asked = true
	return may
}

// discover asks the server what it says of the model. It is called after the first good answer: the
// model is loaded then, and the window that it runs with is known. Of what fails nothing is known.
func (c *client) discover(ctx context.Context) {
	if !c.profile.mayAsk() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	listed, _ := preset.ListedModel(c.get(ctx, c.endpoint.URL("/models")), c.model)
	if listed.Window == 0 {
		// Ollama says what it runs a model with beside its OpenAI API.
		base := preset.Endpoint{Base: strings.TrimSuffix(c.endpoint.Base, "/v1"), Version: c.endpoint.Version}
		running, _ := preset.ListedModel(c.get(ctx, base.URL(preset.PathRunning)), c.model)
		listed = listed.Or(running)
	}
	c.profile.mu.Lock()
	c.profile.listed = listed
	c.profile.mu.Unlock()
	c.use(c.profile.get())
}

// use puts what is known of the model in force.
func (c *client) use(m preset.Model) {
	c.window.know(m.Window, m.Output)
	c.dialects.know(m)
}

// get returns what is at an address, nil if that fails.
func (c *client) get(ctx context.Context, url string) []byte {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.do(req, c.dialects.get().api)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, largestList))
	if err != nil || resp.StatusCode != http.StatusOK || !json.Valid(body) {
		return nil
	}
	return body
}

// rates are the vendor's list prices, nil where another server is asked.
func (c *client) rates() *preset.Rates {
	if c.endpoint.Base != preset.BaseURL(c.llm.Model, "") {
		return nil
	}
	return c.profile.get().Rates
}

// know sets what the model is known to take. What was learned of a refusal stays.
func (d *dialects) know(m preset.Model) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now.most = min(cmp.Or(m.Output, anyMax), mostMax)
	if m.Vision != nil && !*m.Vision {
		d.now.noPictures = true
	}
	if m.Tools != nil && !*m.Tools && !d.native {
		d.now.written = true
	}
}
