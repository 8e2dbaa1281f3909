package fsm

import "time"

// Admission returns the error with which SandboxCreate would refuse a sandbox now (CodeLimit), or
// nil when it fits the limits. specID "" is the default spec. warm: a member of the warm pool is
// claimed if there is one. Callers use it to refuse a request before they store anything for it;
// Apply decides.
func (v *View) Admission(userID, specID string, warm bool, now time.Time) *Error {
	t := v.transaction(now)
	spec, err := t.specOrDefault(specID)
	if err != nil {
		return nil // SandboxCreate reports it
	}
	next := &Sandbox{UserID: userID, Desired: DesiredRunning, Template: spec.Template.resolve(v.Settings(userID))}
	var member *Sandbox
	if warm {
		member = claimable(&v.meta, v.txn, spec, &next.Template, nil)
	}
	return t.refusal(t.demandOf(member, next, nil))
}

// RestoreAdmission returns the error with which Apply would refuse an OrphanRestore of a volume at this
// time, or nil. Callers use it before they write the key.
func (v *View) RestoreAdmission(volume string, now time.Time) *Error {
	t := v.transaction(now)
	_, s, err := t.restored(volume)
	if err != nil {
		return err
	}
	return t.refusal(t.demandOf(nil, s, nil))
}

// StartAdmission is Admission for StartTaskCreate with that request. It returns CodeInvalid when
// the cluster's protocol version does not allow a start of that size yet, and CodeNotFound for a
// sandbox that the user does not have.
func (v *View) StartAdmission(userID string, q *StartRequest, now time.Time) *Error {
	t := v.transaction(now)
	if err := q.fits(v.ProtocolVersion()); err != nil {
		return err
	}
	if valueOr(q.ACPServer, "") != "" && !v.Active(VersionAgents) {
		return NeedsVersion("an agent of a spec", VersionAgents, v.ProtocolVersion())
	}
	request := *q
	if id := q.ParentConversationID; id != nil {
		if parent := v.Conversation(userID, *id); parent != nil {
			request.dropEmpty()
			request.inherit(parent)
		}
	}
	sandboxID := valueOr(request.SandboxID, "")
	s, err := t.sandboxOfStart(userID, sandboxID)
	if err != nil {
		return err
	}
	if err := t.agentOfStart(userID, &request, s); err != nil {
		return err
	}
	if err := t.mayGrow(userID,
		growthOf(&t.meta, nil, &StartTask{Status: StartTaskWorking, Request: request})); err != nil {
		return err
	}
	if sandboxID == "" && t.grouped(userID) != nil {
		return t.refusal(t.demandOfRunning(userID))
	}
	if sandboxID == "" {
		if member := t.memberFor(userID, q); member != nil {
			return t.refusal(t.demandOf(member, t.claimed(member, userID), nil))
		}
		return t.refusal(t.reserve(userID).demand(userID))
	}
	if s == nil || s.Desired != DesiredPaused {
		return t.refusal(t.demandOfRunning(userID))
	}
	return t.refusal(t.demandOf(s, s.withDesired(DesiredRunning, now), nil))
}

// GrowthAdmission returns the error with which Apply would refuse what a command with secrets adds to
// the state (CodeLimit), or nil. Callers use it before they write the secrets.
func (v *View) GrowthAdmission(c Command) *Error {
	t := v.transaction(c.Time)
	t.cmd = c
	switch b := c.Body.(type) {
	case *SettingsPutBody:
		return t.settingsAdmission(b, b.over)
	case *SettingsPatchBody:
		return t.settingsAdmission(&b.SettingsPutBody, b.over)
	case *ProvidersReplaceBody:
		return t.mayGrow(c.UserID, t.providersGrowth(c.UserID, b.Providers))
	case *ProfilePutBody:
		_, err := t.changeOfProfile(b)
		return err
	case *CustomSecretPutBody:
		_, _, err := t.customSecretToPut(b)
		return err
	case *StartTaskCreateBody:
		return t.mayGrow(c.UserID,
			growthOf(&t.meta, nil,
				&StartTask{UserID: c.UserID, Status: StartTaskWorking, Request: b.Request, Secrets: b.Secrets}))
	}
	return nil
}

// transaction returns a transaction for reading only.
func (v *View) transaction(now time.Time) *transaction {
	return &transaction{before: v, txn: v.txn, meta: v.meta, now: now}
}

// refusal returns only the error of admit.
func (t *transaction) refusal(d demand) *Error {
	_, err := t.admit(d)
	return err
}
