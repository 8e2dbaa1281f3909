package native

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

type lookupArgs struct {
	Word string `json:"word"`
}

// mcpServer is an MCP server over HTTP with the tools lookup and terminal.
func mcpServer(t *testing.T) string {
	t.Helper()
	s := sdk.NewServer(&sdk.Implementation{Name: "dictionary", Version: "1"}, nil)
	answer := func(_ context.Context, _ *sdk.CallToolRequest, a lookupArgs) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{
			Content: []sdk.Content{&sdk.TextContent{Text: a.Word + " is a tent, token hush-hush"}},
		}, nil, nil
	}
	sdk.AddTool(s, &sdk.Tool{Name: "lookup", Description: "Look a word up"}, answer)
	sdk.AddTool(s, &sdk.Tool{Name: "terminal"}, answer)
	h := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(h.Close)
	return h.URL
}

func withMCP(t *testing.T, servers map[string]any) option {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	return func(s *engine.Setup) { s.Agent.MCPConfig = raw }
}

// A tool of an MCP server is called as any other, its name does not hide an own tool, and a server
// that is not there is told.
func TestMCP_Call(t *testing.T) {
	r := newRig(t, &modeltest.Script{Stories: []*modeltest.Story{{Answers: []modeltest.Answer{
		{Calls: []modeltest.Call{modeltest.Tool("lookup", map[string]string{"word": "bivouac", "security_risk": "LOW"})}},
		{Text: "A tent."},
	}}}}, withMCP(t, map[string]any{
		"words": map[string]any{"url": mcpServer(t), "transport": "streamable-http"},
		"gone":  map[string]any{"command": "no-such-program"},
	}), func(s *engine.Setup) {
		s.Secrets = map[string]engine.Secret{"TOKEN": {Value: "hush-hush"}}
	})
	r.say("What is a bivouac?")
	r.ends(engine.Finished)
	r.tells("user: What is a bivouac?", "system", "call lookup",
		"result lookup: [Tool 'lookup' executed.]\nbivouac is a tent, token <secret-hidden>", "agent: A tent.")
	prompt := all[*event.SystemPrompt](r)[0]
	kinds := map[string]string{}
	for _, d := range prompt.Tools {
		kinds[d.Title] += d.Kind + " "
	}
	if kinds["lookup"] != "MCPToolDefinition " || kinds["terminal"] != "TerminalTool MCPToolDefinition " {
		t.Errorf("the system prompt's tools are %v", kinds)
	}
	if text := prompt.DynamicContext.Text; !strings.Contains(text, "- gone: no-such-program is not installed") {
		t.Errorf("the system prompt does not tell of the server that is not there: %s", text)
	}
	action := all[*event.Action](r)[0]
	if string(action.Action) != `{"kind":"MCPToolAction","data":{"word":"bivouac"}}` {
		t.Errorf("the action is %s", action.Action)
	}
	if all := strings.Join(r.server.Requests()[0].Tools, " "); !strings.Contains(all, "words_terminal") {
		t.Errorf("the model's tools are %s", all)
	}
}

// The system prompt does not wait for a server longer than its context, and Close ends the start.
func TestMCP_ServerThatNeverAnswers(t *testing.T) {
	mute := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	t.Cleanup(mute.Close)
	r := newRig(t, &modeltest.Script{}, withMCP(t, map[string]any{"mute": map[string]any{"url": mute.URL}}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if p := r.SystemPrompt(ctx); len(p.Tools) != 5 {
		t.Errorf("the system prompt has %d tools", len(p.Tools))
	}
	r.Close()
	if _, err := r.open(t.Context()); err == nil {
		t.Error("a closed engine opens tools")
	}
}
