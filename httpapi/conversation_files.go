package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/scheduler/agent/bash"
)

// maxFiles is how many files a listing has at most.
const maxFiles = 5000

// listFiles prints the files below the directory that it runs in, without what tools make again. It
// names no path: the directory is the command's.
const listFiles = `find . \( -name .git -o -name node_modules -o -name .venv -o -name __pycache__ \) -prune ` +
	`-o -type f -print 2>/dev/null | head -n 5000`

// maxListing bounds what is kept of a command's output, in bytes: a sandbox may print without end.
const maxListing = 8 << 20

// handleConversationFiles handles GET …/{conversation_id}/files: the files below a directory of the
// sandbox, by their paths in it; none while the sandbox does not run or has no such directory.
func (s *Server) handleConversationFiles(c *call) (response.Response, error) {
	dir := "/workspace/project"
	if asked := c.Query.Text("path", fsm.MaxLine); decode.OrZero(asked) != "" {
		if dir = *asked; !path.IsAbs(dir) {
			c.Problems.Value([]string{"query", "path"}, "the path must be absolute", decode.Echo(dir, false))
		}
	}
	a, err := c.agentOfPath()
	if err != nil {
		return response.Response{}, err
	}
	if !a.serves() {
		return response.OK([]string{})
	}
	ctx, cancel := context.WithTimeout(c.Ctx(), agentCallTime)
	defer cancel()
	text, err := a.shell(ctx, dir, listFiles)
	if err != nil {
		return response.Response{}, errOfAgent(err)
	}
	files := []string{}
	for line := range strings.Lines(text) {
		if name, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "./"); is && len(files) < maxFiles {
			files = append(files, strings.ToValidUTF8(name, "\uFFFD"))
		}
	}
	slices.Sort(files)
	return response.OK(files)
}

// shell runs a command in a directory of the sandbox and returns what it printed. One that fails, as in
// a directory that does not exist, has printed what it has.
func (a *conversationAgent) shell(ctx context.Context, dir, command string) (string, error) {
	body, err := json.Marshal(map[string]any{
		"command": command, "cwd": dir, "timeout": int(agentCallTime / time.Second),
	})
	if err != nil {
		return "", err
	}
	var begun struct {
		ID string `json:"id"`
	}
	if err := a.call(ctx, AgentRequest{http.MethodPost, "/api/bash/start_bash_command", body}, &begun); err != nil {
		return "", err
	}
	var text strings.Builder
	_, err = bash.Read(ctx, begun.ID, func(ctx context.Context, path string, page *bash.Page) error {
		return a.call(ctx, AgentRequest{Method: http.MethodGet, Path: path}, page)
	}, func(one bash.Output) {
		if text.Len() < maxListing {
			text.WriteString(decode.OrZero(one.Stdout))
		}
	})
	return text.String(), err
}
