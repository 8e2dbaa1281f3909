package mcp

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// modeVariable makes the test program an MCP server.
const modeVariable = "MCP_TEST_MODE"

func TestMain(m *testing.M) {
	switch os.Getenv(modeVariable) {
	case "":
		goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
			// The test's own HTTP server keeps a session whose client is gone.
			goleak.IgnoreTopFunction("github.com/modelcontextprotocol/go-sdk/mcp.(*streamableServerConn).Read"))
	case "server":
		if err := newTestServer().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "garbage":
		for range 100 {
			fmt.Println("Welcome! {\"jsonrpc\": nonsense")
		}
		forever()
	case "mute":
		forever() // it reads nothing either
	case "broken":
		fmt.Fprintln(os.Stderr, "no configuration: the key "+os.Getenv("SERVICE_API_KEY")+" is wrong")
		os.Exit(3)
	}
}

func forever() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	<-c
}

type textArgs struct {
	Text    string `json:"text"`
	Summary string `json:"summary,omitempty"`
}

// newTestServer is a server with tools that work, and with tools that fail in their own ways.
func newTestServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	add := func(name string, f func(context.Context, textArgs) (*sdk.CallToolResult, error)) {
		sdk.AddTool(s, &sdk.Tool{
			Name:        name,
			Description: "The tool " + name,
			Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true},
		},
			func(ctx context.Context, _ *sdk.CallToolRequest, a textArgs) (*sdk.CallToolResult, any, error) {
				r, err := f(ctx, a)
				return r, nil, err
			})
	}
	text := func(s string) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}, nil
	}
	add("echo", func(_ context.Context, a textArgs) (*sdk.CallToolResult, error) {
		return text("echo " + a.Text + a.Summary)
	})
	add("environ", func(context.Context, textArgs) (*sdk.CallToolResult, error) {
		return text(strings.Join(os.Environ(), "\n"))
	})
	add("fail", func(context.Context, textArgs) (*sdk.CallToolResult, error) { return nil, fmt.Errorf("no such record") })
	add("die", func(context.Context, textArgs) (*sdk.CallToolResult, error) { os.Exit(7); return nil, nil })
	add("hang", func(ctx context.Context, _ textArgs) (*sdk.CallToolResult, error) {
		forever()
		return nil, nil
	})
	add("big", func(context.Context, textArgs) (*sdk.CallToolResult, error) {
		return text(strings.Repeat("x", maxMessage+1<<16))
	})
	add("huge", func(context.Context, textArgs) (*sdk.CallToolResult, error) {
		fmt.Print(`{"jsonrpc":"2.0","method":"`)
		for range 100 {
			fmt.Print(strings.Repeat("x", 1<<20))
		}
		return text("huge")
	})
	add("long", func(context.Context, textArgs) (*sdk.CallToolResult, error) {
		return text("begin" + strings.Repeat("é", 100_000) + "end")
	})
	add("image", func(context.Context, textArgs) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: []byte("png"), MIMEType: "image/png"}}}, nil
	})
	add("daemon", func(context.Context, textArgs) (*sdk.CallToolResult, error) {
		cmd := exec.Command("sleep", "3600")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return text(fmt.Sprint(cmd.Process.Pid))
	})
	add("file.search/all", func(context.Context, textArgs) (*sdk.CallToolResult, error) { return text("odd name") })
	return s
}
