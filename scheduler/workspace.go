package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/fault"
)

// markerFile is the path of the workspace's marker, relative to the workspace.
const markerFile = ".bivouac/sandbox"

// marker is the file's content.
type marker struct {
	Sandbox string `json:"sandbox"`
	Token   string `json:"token"`
}

// markerOf returns the marker of a sandbox's workspace: the row's, also after the sandbox got another
// key. The first token derives from the sandbox's id and the hash of its key, so two leaders write
// the same one, and a later sandbox with the same id has another.
func markerOf(sb *fsm.Sandbox) marker {
	if has := sb.Status.Workspace; has != "" && has != fsm.WorkspaceUnmarked {
		return marker{sb.ID, has}
	}
	sum := sha256.Sum256([]byte("bivouac workspace\n" + sb.ID + "\n" + sb.KeyHash))
	return marker{sb.ID, hex.EncodeToString(sum[:16])}
}

func (m marker) encode() []byte {
	b, _ := json.Marshal(m) // two texts
	return append(b, '\n')
}

// checkWorkspace checks that the workspace is the sandbox's. It writes the marker before the
// first RUNNING. It writes it again in the allocation in which the workspace was proven, because
// an agent may delete it (git clean). In any other case the marker must be there.
func (p *prober) checkWorkspace(ctx context.Context, key string, res *ProbeResult) *Failure {
	had := p.sb.Status.Workspace
	switch {
	case had == fsm.WorkspaceUnmarked || p.work == "":
		res.Marker = fsm.WorkspaceUnmarked
		return nil
	case had == "" || p.provenHere():
		return p.mark(ctx, key, res)
	}
	lost, foreign, err := p.readMarker(ctx, key)
	accepted, evenForeign := p.sb.Accepted()
	switch {
	case err != nil:
		return &Failure{Reason: fsm.ReasonHealth, Detail: "the workspace at " + p.url + " can't be read: " + err.Error()}
	case lost == "":
		res.Marker, res.Acceptance, p.marked = had, p.sb.Acceptance, time.Now()
		return nil
	case accepted && (!foreign || evenForeign):
		return p.mark(ctx, key, res)
	}
	return &Failure{Reason: fsm.ReasonWorkspace, Detail: lost}
}

// provenHere reports whether the row says that the workspace was proven in the probed allocation.
// A row from before Proven says so while it is RUNNING there.
func (p *prober) provenHere() bool {
	st := p.sb.Status
	return p.alloc != "" && (st.Proven == p.alloc || st.State == fsm.SandboxRunning && st.Placement != nil &&
		st.Placement.AllocID == p.alloc)
}

// markerPath is the marker's path: in the root of the volume. Projects are in directories below
// it, so a clean of a project does not reach the marker.
func (p *prober) markerPath() string { return path.Join(p.work, markerFile) }

// mark writes the marker.
func (p *prober) mark(ctx context.Context, key string, res *ProbeResult) *Failure {
	want := markerOf(p.sb)
	fault.At("before", "mark workspace")
	err := p.l.s.agents.Upload(ctx, p.url, key, p.markerPath(), want.encode())
	fault.At("after", "mark workspace")
	switch {
	case err == nil:
		res.Marker, res.Acceptance, p.marked = want.Token, p.sb.Acceptance, time.Now()
	case noFileCalls(err):
		res.Marker = fsm.WorkspaceUnmarked
	default:
		return &Failure{Reason: fsm.ReasonHealth, Detail: "the workspace at " + p.url + " can't be written: " + err.Error()}
	}
	return nil
}

// readMarker returns in lost why the marker is not the sandbox's, "" when it is; foreign when it
// is another sandbox's.
func (p *prober) readMarker(ctx context.Context, key string) (lost string, foreign bool, err error) {
	raw, err := p.l.s.agents.Download(ctx, p.url, key, p.markerPath())
	if errors.Is(err, agent.ErrNoFile) {
		return "the workspace is empty or another, " +
			"or was cleared: its marker " + p.markerPath() + " is gone; the sandbox was stopped so that " +
			"nothing is written over what may be left; if it is the right one, " +
			"accept it (accept-workspace) and resume", false, nil
	}
	if err != nil {
		return "", false, err
	}
	want := markerOf(p.sb)
	var got marker
	switch {
	case json.Unmarshal(raw, &got) != nil || got.Sandbox == "" || got.Token == "":
		return "the workspace's marker " + p.markerPath() + " can't be read; the sandbox was stopped; " +
			"if the workspace is the right one, accept it (accept-workspace) and resume", false, nil
	case got != want:
		return "the workspace is not this sandbox's: its marker " + p.markerPath() + " belongs to another; " +
			"the sandbox was stopped; " +
			"an operator can accept the workspace (bivouac operator accept-workspace)", true, nil
	}
	return "", false, nil
}

// renewMarker writes the marker again every MarkerInterval while the sandbox runs: a marker that
// an agent deleted must not look like a lost workspace when the task ends without a graceful
// pause.
func (p *prober) renewMarker(ctx context.Context, res ProbeResult) {
	if !res.Answering || !res.Proven || res.Marker == "" || res.Marker == fsm.WorkspaceUnmarked ||
		time.Since(p.marked) < p.l.s.cfg.MarkerInterval {
		return
	}
	// The next try is one interval away, even after an error. The jitter spreads the sandboxes.
	p.marked = time.Now().Add(jitter(p.l.s.cfg.MarkerInterval) - p.l.s.cfg.MarkerInterval)
	keys, err := p.l.gate.read(ctx, p.l.s.secrets, p.sb.KeyRef, p.client, &p.lateKey)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, p.l.s.cfg.ProbeTimeout)
		defer cancel()
		err = p.l.s.agents.Upload(ctx, p.url, keys[fsm.MemberKey], p.markerPath(), markerOf(p.sb).encode())
	}
	if err != nil {
		p.l.log.Debug("writing the workspace's marker again failed", "sandbox", p.sb.ID, "error", err)
	}
}

// noFileCalls reports whether the server has no file API.
func noFileCalls(err error) bool {
	var e *agent.Error
	return errors.As(err, &e) && !errors.Is(err, agent.ErrNoFile) &&
		(e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed)
}
