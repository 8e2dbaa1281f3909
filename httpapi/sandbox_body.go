package httpapi

import (
	"cmp"
	"context"
	"net"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/wire"
)

// keyReaders is how many sandbox keys one listing reads in parallel.
const keyReaders = 16

// sandboxBody is the API's SandboxInfo (API.md, "Sandboxes: members").
type sandboxBody struct {
	ID              string           `json:"id"`
	CreatedByUserID *string          `json:"created_by_user_id"`
	SandboxSpecID   string           `json:"sandbox_spec_id"`
	Status          fsm.SandboxState `json:"status"`
	SessionAPIKey   *string          `json:"session_api_key"`
	ExposedURLs     []exposedURL     `json:"exposed_urls"`
	CreatedAt       wire.Time        `json:"created_at"`
	StatusDetail    *string          `json:"status_detail"`
}

// exposedURL is one port of a sandbox. Port is the number inside the container.
type exposedURL struct {
	Name string `json:"name"`
	URL  string `json:"url"`
	Port int    `json:"port"`
}

// sandboxKeys holds the keys of running sandboxes. failed has those whose key could not be read.
type sandboxKeys struct {
	values map[string]string
	failed map[string]bool
}

// sandboxKeys reads the keys of the running sandboxes among rows, which may contain nil.
func (s *Server) sandboxKeys(ctx context.Context, rows []*fsm.Sandbox) sandboxKeys {
	return s.readKeys(ctx, slices.DeleteFunc(slices.Clone(rows), func(row *fsm.Sandbox) bool {
		return row == nil || !proxy.IsServing(row)
	}))
}

// readKeys reads the keys of rows. The versions it reads never change. Without the secret store the
// listing has no keys.
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
			key, err := s.calls.ReadSecret(ctx, row.KeyRef, "key")
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

// newSandboxBody renders a sandbox, with its key and URLs while it runs.
func newSandboxBody(row *fsm.Sandbox, keys sandboxKeys, to links) sandboxBody {
	b := sandboxBody{
		ID: row.ID, CreatedByUserID: &row.UserID, SandboxSpecID: row.SpecID,
		Status: row.State(), CreatedAt: wire.At(row.CreatedAt),
	}
	// A detail of an older generation describes a state that no longer applies.
	if row.Status.Generation == row.Generation {
		b.StatusDetail = wire.OrNull(cmp.Or(row.Status.Detail, movedDetail(row)))
	}
	if !proxy.IsServing(row) {
		return b
	}
	key := keys.values[row.ID]
	b.SessionAPIKey = wire.OrNull(key)
	b.ExposedURLs = exposedURLs(row, key, to)
	if keys.failed[row.ID] {
		b.StatusDetail = wire.OrNull("The secret store is unavailable, so the session key can't be shown right now.")
	}
	return b
}

// movedDetail describes where the workspace came from, until the sandbox is paused or resumed again.
func movedDetail(row *fsm.Sandbox) string {
	h := row.Home
	switch {
	case h == nil || h.Generation != row.Generation:
		return ""
	case h.Orphan != "":
		return "the workspace is a copy of what the Nomad client " + h.From + ", which was lost, has of another sandbox"
	case !h.Lost:
		return "the workspace was moved here from the Nomad client " + h.From + ", which is drained"
	case h.CopyAt.IsZero():
		return "the Nomad client " + h.From + " was lost before anything was written: the workspace is new"
	}
	return "the Nomad client " + h.From + " was lost: the " +
		"workspace is the copy of " + h.CopyAt.UTC().Format(time.RFC3339) +
		", and what was written later is gone"
}

// exposedURLs lists a running sandbox's ports: the known names in fixed order, then the others by
// name.
func exposedURLs(row *fsm.Sandbox, key string, to links) []exposedURL {
	place := row.Status.Placement
	order := []string{fsm.PortAgentServer, proxy.PortVSCode, proxy.PortWorker1, proxy.PortWorker2}
	for _, name := range decode.SortedKeys(place.Ports) {
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
		if name == proxy.PortVSCode && key == "" {
			continue
		}
		u := exposedURL{Name: name, URL: to.port(row, name), Port: port}
		if inside := row.Template.Ports[name]; inside != 0 {
			u.Port = inside
		}
		if name != fsm.PortAgentServer {
			u.URL = to.page(row, name, key)
		}
		urls = append(urls, u)
	}
	return urls
}

// workingDir is the projects' directory as the task sees it.
func workingDir(row *fsm.Sandbox) string {
	dir := row.Template.WorkingDir
	if path.IsAbs(dir) {
		return dir
	}
	return path.Join(row.Status.Placement.Workspace, dir)
}

// agentURL is the nodes' URL of a placed sandbox's agent server.
func agentURL(p *fsm.Placement) string {
	return "http://" + net.JoinHostPort(p.Address, strconv.Itoa(p.Ports[fsm.PortAgentServer]))
}
