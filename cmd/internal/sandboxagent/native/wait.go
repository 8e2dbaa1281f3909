package native

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"strconv"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// signs counts informational responses, which come while a request waits, as signs of life, and tells
// the places that they name.
func (c *client) signs(ctx context.Context, idle *time.Timer) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(status int, h textproto.MIMEHeader) error {
			idle.Reset(c.timeout())
			n, err := strconv.Atoi(h.Get(preset.HeaderPlace))
			if err == nil && n > 0 && status == http.StatusProcessing && c.queued != nil {
				c.queued(n)
			}
			return nil
		},
	})
}

// queued tells those who follow the conversation that a request waits for its server. It is not stored.
func (e *Engine) queued(place int) {
	e.conv.Send(engine.Update(event.KeyModelQueue, place))
}

// longestLoad is how long a server is waited for that loads its model.
const longestLoad = 10 * time.Minute

// loads is what servers say while they load a model, which takes minutes.
var loads = regexp.MustCompile( //nolint:gochecknoglobals // compiled once, read-only
	`(?i)loading (the )?model|model \S* ?is (currently |still )?(being )?load`)

// isLoading reports whether the server is there and can't answer yet.
func (f *callError) isLoading() bool {
	return f.status >= http.StatusInternalServerError && loads.MatchString(f.said)
}
