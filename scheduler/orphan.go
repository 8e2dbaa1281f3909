package scheduler

// orphaned reports whether there is something of ours that no sandbox owns.
func orphaned(o Observed) bool { return !o.Foreign && (o.Exists || o.Workspace) }

// planOrphan removes what no sandbox owns, when it was seen for a while: what
// was just removed may be shown once more. A job is stopped first, because that
// loses against whoever changed it since.
func planOrphan(s Situation) Decision {
	o := s.Observed
	if !s.Known || !orphaned(o) {
		return Decision{}
	}
	at := s.OrphanSince.Add(s.Limits.Orphan)
	late := at.Add(s.Limits.Stop)
	switch {
	case s.Now.Before(at):
		return Decision{Wake: at}
	case !s.Now.Before(late):
	case o.Exists && !o.Stopped:
		return Decision{Step: StepStop, Wake: late}
	case o.Live > 0:
		return Decision{Wake: late}
	}
	return Decision{Step: StepRemoveOrphan}
}
