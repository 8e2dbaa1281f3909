package operators

import (
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func newHoldBody(h *fsm.Hold) *wire.Hold {
	if h == nil {
		return nil
	}
	return &wire.Hold{Index: h.Index, Since: wire.At(h.Since), Findings: h.Findings, More: h.More}
}

func newRemovals(v *fsm.View, now time.Time) []wire.Removal {
	var list []wire.Removal
	for _, kind := range []string{fsm.RemovalSandbox, fsm.RemovalJob, fsm.RemovalWorkspace, fsm.RemovalSecret} {
		b := wire.Removal{Kind: kind, Removed: v.Removed(kind, now)}
		for _, brake := range v.Brakes(now) {
			if brake.Kind == kind {
				b.BrakedAt, b.Limit = wire.TimeOrNull(&brake.At), new(brake.Limit)
			}
		}
		list = append(list, b)
	}
	return list
}

// HoldGet handles GET /api/v1/operator/hold.
func (s *Server) HoldGet(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(s.holdReport(v, c.Now))
}

func (s *Server) holdReport(v *fsm.View, now time.Time) wire.HoldReport {
	r := wire.HoldReport{Hold: newHoldBody(v.Hold()), Removals: newRemovals(v, now)}
	if r.Hold != nil {
		r.AfterRelease = s.afterRelease(v, now)
	}
	return r
}

// afterRelease predicts the effects of a release.
func (s *Server) afterRelease(v *fsm.View, now time.Time) *wire.AfterRelease {
	adopt := v.Adoptable()
	a := &wire.AfterRelease{
		Adopt: wire.OrEmpty(adopt), RemoveJobs: []string{}, RemoveWorkspaces: []wire.OrphanWorkspace{},
		Start: []string{}, Stop: []string{}, Delete: []string{},
	}
	for _, o := range v.Orphans() {
		at, goes := s.removableAt(v, o, adopt, now)
		switch {
		case !goes:
		case o.Kind == fsm.OrphanJob:
			a.RemoveJobs = append(a.RemoveJobs, o.Sandbox)
		default:
			a.RemoveWorkspaces = append(a.RemoveWorkspaces,
				wire.OrphanWorkspace{Sandbox: o.Sandbox, RemovableAt: wire.At(at)})
		}
	}
	for sb := range v.AllSandboxes() {
		if !v.Held(sb) {
			continue
		}
		switch {
		case sb.Desired == fsm.DesiredDeleted:
			a.Delete = append(a.Delete, sb.ID)
		case sb.Desired == fsm.DesiredPaused && sb.Status.State != fsm.SandboxPaused:
			a.Stop = append(a.Stop, sb.ID)
		case sb.Desired == fsm.DesiredRunning && sb.State() == fsm.SandboxStarting:
			a.Start = append(a.Start, sb.ID)
		}
	}
	return a
}

// removableAt returns when an orphan is removed automatically if the ranges are adopted now; false
// if it never is.
func (s *Server) removableAt(v *fsm.View, o *fsm.Orphan, adopt []fsm.Adopted, now time.Time) (time.Time, bool) {
	since := o.Since
	if o.Reason == fsm.OrphanStranger && !o.Delete {
		b, ok := fsm.ParseBirth(o.Birth)
		if !ok || b.Cluster != v.ClusterID() || !adopted(adopt, b) {
			return time.Time{}, false
		}
		since = now // its retention starts with the adoption
	}
	if o.Kind == fsm.OrphanLost {
		return o.RetainedUntil(fsm.LostRetention), true
	}
	if o.Kind == fsm.OrphanJob || o.Delete || o.Purged {
		return since, true
	}
	return since.Add(s.cfg.OrphanRetention), true
}

func adopted(ranges []fsm.Adopted, b fsm.Birth) bool {
	for _, a := range ranges {
		if a.Nonce == b.Nonce && b.Index <= a.Index {
			return true
		}
	}
	return false
}

// HoldRelease handles POST /api/v1/operator/hold/release. {"index": N} releases only the hold
// that began at N, the one the caller has seen.
func (s *Server) HoldRelease(c *request.Call) (response.Response, error) {
	index := c.Object().Integer("index")
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		v, err := c.View()
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if h := v.Hold(); h == nil || index != nil && uint64(*index) != h.Index {
			return nil, request.SecretWrites{}, fsm.Errorf(fsm.CodeConflict, "there is no such hold to release")
		}
		return &fsm.HoldReleaseBody{Adopt: v.Adoptable()}, request.SecretWrites{}, nil
	}, func(fsm.Result) (response.Response, error) { return response.OK(wire.Success{Success: true}) })
}
