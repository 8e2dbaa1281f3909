package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"path"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/fault"
)

// markerFile is the workspace's marker, relative to it.
const markerFile = ".bivouac/sandbox"

// marker is what the file says.
type marker struct {
	Sandbox string `json:"sandbox"`
	Token   string `json:"token"`
}

// markerOf is the marker of a sandbox's workspace. Its token follows from the
// sandbox's id and key, so that two leaders write the same one, and a sandbox
// that later gets the same id has another.
func markerOf(sb *fsm.Sandbox) marker {
	sum := sha256.Sum256([]byte("bivouac workspace\n" + sb.ID + "\n" + sb.KeyHash))
	return marker{sb.ID, hex.EncodeToString(sum[:16])}
}

func (m marker) encode() []byte {
	b, _ := json.Marshal(m) // two texts
	return append(b, '\n')
}

// checkWorkspace marks the workspace of a sandbox that is RUNNING for the first
// time, and makes sure that one that ran before has the workspace it had.
func (p *prober) checkWorkspace(ctx context.Context, key string, res *ProbeResult) *Failure {
	had, file := p.sb.Status.Workspace, path.Join(p.work, markerFile)
	if had == fsm.WorkspaceUnmarked || p.work == "" {
		res.Marker = fsm.WorkspaceUnmarked
		return nil
	}
	want := markerOf(p.sb)
	if had == "" {
		fault.At("before", "mark workspace")
		err := p.l.s.agents.Upload(ctx, p.url, key, file, want.encode())
		fault.At("after", "mark workspace")
		switch {
		case err == nil:
			res.Marker = want.Token
		case noFileCalls(err):
			res.Marker = fsm.WorkspaceUnmarked
		default:
			return &Failure{Reason: fsm.ReasonHealth, Detail: "the workspace at " + p.url + " can't be written: " + err.Error()}
		}
		return nil
	}
	raw, err := p.l.s.agents.Download(ctx, p.url, key, file)
	switch {
	case errors.Is(err, agent.ErrNoFile):
		return lostWorkspace("the workspace is empty or another: its marker " + file + " is gone; the sandbox was stopped so that nothing is written over what may be left")
	case err != nil:
		return &Failure{Reason: fsm.ReasonHealth, Detail: "the workspace at " + p.url + " can't be read: " + err.Error()}
	}
	var got marker
	if json.Unmarshal(raw, &got) != nil || got.Sandbox != want.Sandbox || got.Token != had {
		return lostWorkspace("the workspace is not this sandbox's: its marker " + file + " belongs to another; the sandbox was stopped")
	}
	res.Marker = had
	return nil
}

func lostWorkspace(detail string) *Failure {
	return &Failure{Reason: fsm.ReasonWorkspace, Detail: detail}
}

// noFileCalls reports whether the server knows no calls for files.
func noFileCalls(err error) bool {
	var e *agent.Error
	return errors.As(err, &e) && !errors.Is(err, agent.ErrNoFile) &&
		(e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed)
}
