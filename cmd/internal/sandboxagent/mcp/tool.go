package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

const (
	actionKind      = "MCPToolAction"
	observationKind = "MCPToolObservation"

	// maxText bounds the text of a result, in bytes; the middle is left out.
	maxText = 50_000
	// maxImages bounds the images of a result, in bytes of their data.
	maxImages = 4 << 20
	// graceTime is how long a call may take to return after its time is over.
	graceTime = 2 * time.Second
)

// tool is a tool of a server. It implements tools.Tool.
type tool struct {
	server     *server
	remote     string // the name that the server knows
	own        []string
	definition tools.Definition
}

func newTool(s *server, t *sdk.Tool) *tool {
	out := &tool{server: s, remote: t.Name}
	title := cmp.Or(t.Title, t.Name)
	a := &event.ToolAnnotations{Title: title, DestructiveHint: true, OpenWorldHint: true}
	if h := t.Annotations; h != nil {
		a.Title = cmp.Or(t.Title, h.Title, t.Name)
		a.ReadOnlyHint, a.IdempotentHint = h.ReadOnlyHint, h.IdempotentHint
		a.DestructiveHint = h.DestructiveHint == nil || *h.DestructiveHint
		a.OpenWorldHint = h.OpenWorldHint == nil || *h.OpenWorldHint
	}
	schema, _ := t.InputSchema.(map[string]any) // the SDK decodes it; without one there are no arguments
	if properties, ok := schema["properties"].(map[string]any); ok {
		for _, name := range []string{"summary", "security_risk"} {
			if _, has := properties[name]; has {
				out.own = append(out.own, name)
			}
		}
	}
	out.definition = tools.Definition{
		Title: a.Title, Description: s.masked(cut(t.Description, maxDescription)), Kind: "MCPToolDefinition",
		ActionType: actionKind, ObservationType: observationKind, Parameters: tools.WithCommon(schema), Annotations: a,
	}
	return out
}

// Definition implements tools.Tool.
func (t *tool) Definition() tools.Definition { return t.definition }

// action is an MCPToolAction.
type action struct {
	Kind string                     `json:"kind"`
	Data map[string]json.RawMessage `json:"data"`
}

// Parse implements tools.Tool. The server checks the arguments.
func (t *tool) Parse(arguments string) (tools.Call, error) {
	args, call, err := tools.Split(arguments, t.own...)
	if err != nil {
		return call, err
	}
	call.Action, err = json.Marshal(action{actionKind, args})
	return call, err
}

// Run implements tools.Tool. A session that has ended is opened again, once a call.
func (t *tool) Run(ctx context.Context, raw json.RawMessage) tools.Observation {
	var a action
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&a); err != nil {
		return t.failed("The action can't be read.")
	}
	limit := t.server.callTime(t.server.options.CallTime)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	late, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(bounded, func() { time.AfterFunc(graceTime, stop) })()
	return tools.Within(late, observationKind, func() tools.Observation { return t.call(bounded, a) },
		func() tools.Observation {
			go t.server.abandon() // it does not read what it is sent
			return t.failed(t.overdue(limit))
		})
}

func (t *tool) overdue(limit time.Duration) string {
	return fmt.Sprintf("The MCP server %q did not answer within %s. The call may still have an effect.", t.server.name,
		limit)
}

func (t *tool) call(ctx context.Context, a action) tools.Observation {
	start, cancel := context.WithTimeout(ctx, t.server.options.StartTime)
	one, err := t.server.connected(start)
	cancel()
	if err != nil {
		return t.failed(fmt.Sprintf("The MCP server %q can't be used: %v.", t.server.name, err))
	}
	result, err := one.client.CallTool(ctx, &sdk.CallToolParams{Name: t.remote, Arguments: a.Data})
	switch {
	case err == nil:
		return t.observation(result)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return t.failed(t.overdue(t.server.callTime(t.server.options.CallTime)))
	case errors.Is(err, sdk.ErrConnectionClosed) || errors.Is(err, sdk.ErrSessionMissing) || t.gone(one):
		t.server.drop(one)
		return t.failed(
			fmt.Sprintf(
				"The MCP server %q ended the connection during the call: %v. The call may have had an effect; "+
					"the next one starts the server again.",
				t.server.name,
				err,
			),
		)
	}
	return t.failed(fmt.Sprintf("The MCP server %q refused the call: %v", t.server.name, err))
}

// gone reports whether a session has ended, or is about to.
func (t *tool) gone(one *session) bool {
	select {
	case <-one.ended:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// observation is a result with its blocks, bounded and masked.
func (t *tool) observation(r *sdk.CallToolResult) tools.Observation {
	var text strings.Builder
	var images []event.Content
	room := maxImages
	add := func(s string) {
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		text.WriteString(s)
	}
	for _, block := range r.Content {
		switch b := block.(type) {
		case *sdk.TextContent:
			add(b.Text)
		case *sdk.ImageContent:
			if len(b.Data) > room || !strings.HasPrefix(b.MIMEType, "image/") {
				add("[An image was left out: it is too large.]")
				continue
			}
			room -= len(b.Data)
			images = append(images,
				event.Content{
					Type:      "image",
					ImageURLs: []string{"data:" + b.MIMEType + ";base64," + base64.StdEncoding.EncodeToString(b.Data)},
				})
		case *sdk.ResourceLink:
			add("[Resource " + b.Name + ": " + b.URI + "]")
		case *sdk.EmbeddedResource:
			if b.Resource != nil {
				add("[Resource " + b.Resource.URI + "]\n" + b.Resource.Text)
			}
		default:
			add(fmt.Sprintf("[A block of the type %T was left out.]", block))
		}
	}
	if len(r.Content) == 0 && r.StructuredContent != nil {
		if b, err := json.Marshal(r.StructuredContent); err == nil {
			add(string(b))
		}
	}
	content := []event.Content{
		event.TextContent("[Tool '" + t.definition.Name + "' executed.]\n" + middle(t.server.masked(text.String()))),
	}
	return tools.Observation{
		Kind: observationKind, Content: append(content, images...), IsError: r.IsError, Members: map[string]any{
			"tool_name": t.definition.Name,
		},
	}
}

func (t *tool) failed(text string) tools.Observation {
	return tools.Observation{
		Kind: observationKind, Content: []event.Content{event.TextContent(middle(t.server.masked(text)))}, IsError: true,
		Members: map[string]any{"tool_name": t.definition.Name},
	}
}

// middle leaves out the middle of a long text.
func middle(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	head, end := cut(s, maxText/2), s[len(s)-maxText/2:]
	for len(end) > 0 && !utf8.RuneStart(end[0]) {
		end = end[1:]
	}
	return fmt.Sprintf("%s\n[… %d bytes were left out …]\n%s", head, len(s)-len(head)-len(end), end)
}

// cut returns the beginning of a text, in whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
