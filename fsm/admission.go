package fsm

import "time"

// Admission tells for what SandboxCreate would be refused if a user asked for a
// sandbox now, CodeLimit, nil when it fits the limits. specID "" is the default;
// member names the one of a warm pool that is to be claimed, "" none. Start
// tasks that have no sandbox yet count as if they had one. It lets a request be
// refused before anything is stored for it; Apply has the last word.
func (v *View) Admission(userID, specID, member string, now time.Time) *Error {
	t := &transaction{txn: v.txn, meta: v.meta, now: now}
	spec, err := t.specOrDefault(specID)
	if err != nil {
		return nil // another's to say
	}
	next := &Sandbox{UserID: userID, Desired: DesiredRunning, Template: spec.Template.resolve(v.Settings(userID))}
	one := demandOf(nil, next)
	ask := demandOf(t.claimable(&Claim{Member: member}, spec, &next.Template), next)
	for task := range withPrefix[StartTask](v.txn, tableStartTasks, indexOpen, nil) {
		if task.SandboxID != "" || task.Request.SandboxID != nil {
			continue
		}
		// What another user's task will ask for depends on their settings: the
		// counts are what can be known.
		theirs := Usage{Running: 1, Total: 1}
		if task.UserID == userID {
			ask.mine, theirs = ask.mine.plus(one.mine), one.theirs
		}
		ask.theirs = ask.theirs.plus(theirs)
	}
	_, err = t.admit(ask)
	return err
}
