package httpapi

import (
	"context"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// keyReaders is how many sandbox keys one listing reads at once.
const keyReaders = 16

// The names of the ports beside fsm.PortAgentServer (api-contract.md C.2).
// VSCODE's URL alone carries the key.
const (
	portVSCode  = "VSCODE"
	portWorker1 = "WORKER_1"
	portWorker2 = "WORKER_2"
)

// sandboxBody is the wire's SandboxInfo (api-contract.md A.7).
type sandboxBody struct {
	ID              string           `json:"id"`
	CreatedByUserID *string          `json:"created_by_user_id"`
	SandboxSpecID   string           `json:"sandbox_spec_id"`
	Status          fsm.SandboxState `json:"status"`
	SessionAPIKey   *string          `json:"session_api_key"`
	ExposedURLs     []exposedURL     `json:"exposed_urls"`
	CreatedAt       wireTime         `json:"created_at"`
	StatusDetail    *string          `json:"status_detail"`
}

// exposedURL is one port of a sandbox as clients reach it. Port is the one in
// the container.
type exposedURL struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	Port int    `json:"port"`
}

// sandboxKeys holds the keys of running sandboxes. A sandbox whose key could
// not be read is in failed.
type sandboxKeys struct {
	values map[string]string
	failed map[string]bool
}

// sandboxKeys reads the keys of the running ones among rows (nil rows are
// skipped).
func (s *Server) sandboxKeys(ctx context.Context, rows []*fsm.Sandbox) sandboxKeys {
	return s.readKeys(ctx, slices.DeleteFunc(slices.Clone(rows), func(row *fsm.Sandbox) bool {
		return row == nil || !isServing(row)
	}))
}

// readKeys reads the keys of rows. The versions it reads never change. When the
// secret store is away the listing goes on without keys.
func (s *Server) readKeys(ctx context.Context, rows []*fsm.Sandbox) sandboxKeys {
	keys := sandboxKeys{values: map[string]string{}, failed: map[string]bool{}}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(keyReaders)
	asked := map[string]bool{}
	for _, row := range rows {
		if asked[row.ID] {
			continue
		}
		asked[row.ID] = true
		group.Go(func() error {
			key, err := s.readSecret(ctx, row.KeyRef, "key")
			mu.Lock()
			defer mu.Unlock()
			if err != nil || key == "" {
				keys.failed[row.ID] = true
				return nil
			}
			keys.values[row.ID] = key
			return nil
		})
	}
	_ = group.Wait() // failures are in keys
	return keys
}

// isServing reports whether clients may see a sandbox's key and URLs.
func isServing(s *fsm.Sandbox) bool {
	return s.State() == fsm.SandboxRunning && s.Status.Placement != nil
}

// newSandboxBody renders a sandbox from the row and, while it runs, its key
// and the links to it.
func newSandboxBody(row *fsm.Sandbox, keys sandboxKeys, to links) sandboxBody {
	b := sandboxBody{
		ID: row.ID, CreatedByUserID: &row.UserID, SandboxSpecID: row.SpecID,
		Status: row.State(), CreatedAt: wireTime(row.CreatedAt),
	}
	// A detail of an older generation explains a state that is no longer shown.
	if row.Status.Generation == row.Generation {
		b.StatusDetail = orNull(row.Status.Detail)
	}
	if !isServing(row) {
		return b
	}
	key := keys.values[row.ID]
	b.SessionAPIKey = orNull(key)
	b.ExposedURLs = exposedURLs(row, key, to)
	if keys.failed[row.ID] {
		b.StatusDetail = orNull("The secret store is unavailable, so the session key can't be shown right now.")
	}
	return b
}

// exposedURLs lists a running sandbox's ports: the known names in the contract's
// order, others after them by name.
func exposedURLs(row *fsm.Sandbox, key string, to links) []exposedURL {
	place := row.Status.Placement
	order := []string{fsm.PortAgentServer, portVSCode, portWorker1, portWorker2}
	for _, name := range sortedKeys(place.Ports) {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	urls := []exposedURL{}
	for _, name := range order {
		port, there := place.Ports[name]
		if !there {
			continue
		}
		u := exposedURL{Name: name, URL: to.port(row, name), Port: port}
		if inside := row.Template.Ports[name]; inside != 0 {
			u.Port = inside
		}
		if name == portVSCode {
			if key == "" {
				continue
			}
			u.URL += "/?tkn=" + url.QueryEscape(key) + "&folder=" + strings.ReplaceAll(url.QueryEscape(workingDir(row)), "%2F", "/")
		}
		urls = append(urls, u)
	}
	return urls
}

// workingDir is the directory projects are kept in, as the task sees it.
func workingDir(row *fsm.Sandbox) string {
	dir := row.Template.WorkingDir
	if path.IsAbs(dir) {
		return dir
	}
	return path.Join(row.Status.Placement.Workspace, dir)
}

// agentURL is how our own nodes reach a placed sandbox's agent server.
func agentURL(p *fsm.Placement) string {
	return "http://" + net.JoinHostPort(p.Address, strconv.Itoa(p.Ports[fsm.PortAgentServer]))
}
