package fsm

import "time"

// Admission tells for what SandboxCreate would be refused if a user asked for a
// sandbox now, CodeLimit, nil when it fits the limits. specID "" is the default;
// warm says that a member of the warm pool is claimed, if there is one. It lets a
// request be refused before anything is stored for it; Apply has the last word.
func (v *View) Admission(userID, specID string, warm bool, now time.Time) *Error {
	t := v.transaction(now)
	spec, err := t.specOrDefault(specID)
	if err != nil {
		return nil // another's to say
	}
	next := &Sandbox{UserID: userID, Desired: DesiredRunning, Template: spec.Template.resolve(v.Settings(userID))}
	var member *Sandbox
	if warm {
		member = claimable(v.txn, spec, &next.Template, nil)
	}
	return t.refusal(demandOf(member, next, nil))
}

// StartAdmission is Admission for StartTaskCreate with that request.
func (v *View) StartAdmission(userID string, q *StartRequest, now time.Time) *Error {
	t := v.transaction(now)
	sandboxID := valueOr(q.SandboxID, "")
	if id := q.ParentConversationID; sandboxID == "" && id != nil {
		if parent := v.Conversation(userID, *id); parent != nil {
			sandboxID = parent.SandboxID
		}
	}
	if sandboxID == "" {
		if member := t.memberFor(userID, q); member != nil {
			return t.refusal(demandOf(member, t.claimed(member, userID), nil))
		}
		return t.refusal(t.promise(userID).demand(userID))
	}
	s, err := t.ownSandbox(userID, sandboxID)
	if err != nil || s.Desired != DesiredPaused {
		return nil
	}
	return t.refusal(demandOf(s, s.desiring(DesiredRunning, now), nil))
}

// transaction is one that only reads.
func (v *View) transaction(now time.Time) *transaction {
	return &transaction{before: v, txn: v.txn, meta: v.meta, now: now}
}

// refusal gives the error of admit.
func (t *transaction) refusal(d demand) *Error {
	_, err := t.admit(d)
	return err
}
