package fsm

import "fmt"

// commandRow defines one command type. A new command is one row of commandTable and its file.
type commandRow struct {
	// body returns a pointer to a zero body.
	body func() Body
	// apply runs on a validated body.
	apply func(*transaction, Body) (Result, *Error)
	// since is the protocol version that introduced the type; 0 is valid at every version.
	since int
	// ofUser: the command acts for Command.UserID.
	ofUser bool
	// ofOperator: the command needs an operator's key, unless it is the leader's own.
	ofOperator bool
}

// byUser marks a command that acts for Command.UserID.
func byUser(r commandRow) commandRow {
	r.ofUser = true
	return r
}

// byOperator marks a command that an operator asks for.
func byOperator(r commandRow) commandRow {
	r.ofOperator = true
	return r
}

// row builds the row of a command that protocol version since introduced.
func row[T any, B interface {
	*T
	Body
}](since int, apply func(*transaction, B) (Result, *Error)) commandRow {
	return commandRow{
		since: since,
		body:  func() Body { return B(new(T)) },
		apply: func(t *transaction, b Body) (Result, *Error) { return apply(t, b.(B)) },
	}
}

// commandTable holds every command type.
//
// term.open and protocol.raise are valid at every version, because raising the version needs them.
var commandTable = map[CommandType]commandRow{ //nolint:gochecknoglobals // read-only
	TermOpen:      row(0, (*transaction).applyTermOpen),
	ProtocolRaise: row(0, (*transaction).applyProtocolRaise),

	InstallationConfigure: byOperator(row(1, (*transaction).applyInstallationConfigure)),
	APIKeyCreate:          byOperator(row(1, (*transaction).applyAPIKeyCreate)),
	APIKeyRevoke:          byOperator(row(1, (*transaction).applyAPIKeyRevoke)),
	UserConfigure:         byOperator(row(1, (*transaction).applyUserConfigure)),
	SettingsPut:           byUser(row(1, (*transaction).applySettingsPut)),
	ProvidersReplace:      byUser(row(1, (*transaction).applyProvidersReplace)),

	SpecApply:  byOperator(row(1, (*transaction).applySpecApply)),
	SpecDelete: byOperator(row(1, (*transaction).applySpecDelete)),
	SpecPool:   byOperator(row(1, (*transaction).applySpecPool)),
	PoolAdd:    row(1, (*transaction).applyPoolAdd),
	PoolDrop:   row(1, (*transaction).applyPoolDrop),

	SandboxCreate:  byUser(row(1, (*transaction).applySandboxCreate)),
	SandboxPause:   byUser(row(1, (*transaction).applySandboxPause)),
	SandboxResume:  byUser(row(1, (*transaction).applySandboxResume)),
	SandboxDelete:  byUser(row(1, (*transaction).applySandboxDelete)),
	SandboxObserve: row(1, (*transaction).applySandboxObserve),
	SandboxRemove:  row(1, (*transaction).applySandboxRemove),
	SandboxTouch:   row(1, (*transaction).applySandboxTouch),
	SandboxExpire:  row(1, (*transaction).applySandboxExpire),

	StartTaskCreate:    byUser(row(1, (*transaction).applyStartTaskCreate)),
	StartTaskBind:      row(1, (*transaction).applyStartTaskBind),
	StartTaskAdvance:   row(1, (*transaction).applyStartTaskAdvance),
	StartTaskFinish:    row(1, (*transaction).applyStartTaskFinish),
	StartTaskFail:      row(1, (*transaction).applyStartTaskFail),
	StartTaskQueue:     byUser(row(VersionStarts, (*transaction).applyStartTaskQueue)),
	StartTaskAsk:       row(VersionSetup, (*transaction).applyStartTaskAsk),
	StartTaskAnswer:    byUser(row(VersionSetup, (*transaction).applyStartTaskAnswer)),
	ConversationUpdate: byUser(row(1, (*transaction).applyConversationUpdate)),
	ConversationDelete: byUser(row(1, (*transaction).applyConversationDelete)),

	ConversationSwitchLLM: byUser(row(VersionRoom, (*transaction).applyConversationSwitchLLM)),

	MarkNote:       row(3, (*transaction).applyMarkNote),
	HoldBegin:      row(3, (*transaction).applyHoldBegin),
	HoldRelease:    byOperator(row(3, (*transaction).applyHoldRelease)),
	RemovalReserve: row(3, (*transaction).applyRemovalReserve),
	OrphanNote:     row(3, (*transaction).applyOrphanNote),
	OrphanDelete:   byOperator(row(3, (*transaction).applyOrphanDelete)),
	OrphanForget:   row(3, (*transaction).applyOrphanForget),
	OrphanRestore:  byOperator(row(VersionRoom, (*transaction).applyOrphanRestore)),
	SandboxAdopt:   row(3, (*transaction).applySandboxAdopt),
	APIKeyEnable:   byOperator(row(3, (*transaction).applyAPIKeyEnable)),
	BackupNote:     row(3, (*transaction).applyBackupNote),

	CertificateRevoke: byOperator(row(3, (*transaction).applyCertificateRevoke)),
	CertificateAllow:  byOperator(row(VersionRotate, (*transaction).applyCertificateAllow)),

	SandboxAcceptWorkspace: byUser(row(3, (*transaction).applySandboxAcceptWorkspace)),

	APIKeyDisable: byOperator(row(VersionAccess, (*transaction).applyAPIKeyDisable)),
	APIKeyUsed:    row(VersionAccess, (*transaction).applyAPIKeyUsed),
	LLMReported:   row(VersionModels, (*transaction).applyLLMReport),
	UserDisable:   byOperator(row(VersionAccess, (*transaction).applyUserDisable)),
	UserEnable:    byOperator(row(VersionAccess, (*transaction).applyUserEnable)),
	UserDelete:    byOperator(row(VersionAccess, (*transaction).applyUserDelete)),

	SandboxShare:   byUser(row(VersionAccess, (*transaction).applySandboxShare)),
	SandboxUnshare: byUser(row(VersionAccess, (*transaction).applySandboxUnshare)),
	SandboxRedeem:  byUser(row(VersionAccess, (*transaction).applySandboxRedeem)),

	SandboxRotateKey: byUser(row(VersionRotate, (*transaction).applySandboxRotateKey)),

	SettingsPatch: byUser(row(VersionProfiles, (*transaction).applySettingsPatch)),

	ProfilePut:      byUser(row(VersionProfiles, (*transaction).applyProfilePut)),
	ProfileDelete:   byUser(row(VersionProfiles, (*transaction).applyProfileDelete)),
	ProfileRename:   byUser(row(VersionProfiles, (*transaction).applyProfileRename)),
	ProfileActivate: byUser(row(VersionProfiles, (*transaction).applyProfileActivate)),

	CustomSecretPut:    byUser(row(VersionProfiles, (*transaction).applyCustomSecretPut)),
	CustomSecretUpdate: byUser(row(VersionProfiles, (*transaction).applyCustomSecretUpdate)),
	CustomSecretDelete: byUser(row(VersionProfiles, (*transaction).applyCustomSecretDelete)),

	SessionCreate: byUser(row(VersionSessions, (*transaction).applySessionCreate)),
	SessionOffer:  byUser(row(VersionSessions, (*transaction).applySessionOffer)),
	SessionRedeem: row(VersionSessions, (*transaction).applySessionRedeem),
	SessionEnd:    byUser(row(VersionSessions, (*transaction).applySessionEnd)),
	SessionSeen:   row(VersionSessions, (*transaction).applySessionSeen),

	DeviceAsk:    row(VersionDevices, (*transaction).applyDeviceAsk),
	DeviceAllow:  byUser(row(VersionDevices, (*transaction).applyDeviceAllow)),
	DeviceRedeem: row(VersionDevices, (*transaction).applyDeviceRedeem),

	OwnKeyCreate: byUser(row(VersionOwnKeys, (*transaction).applyOwnKeyCreate)),
	OwnKeyRevoke: byUser(row(VersionOwnKeys, (*transaction).applyOwnKeyRevoke)),

	ClientMarkSet: byOperator(row(VersionClients, (*transaction).applyClientMark)),
	ClientDrain:   row(VersionRoom, (*transaction).applyClientDrain),
	SandboxCopied: row(VersionClients, (*transaction).applySandboxCopied),
	SandboxMove:   row(VersionClients, (*transaction).applySandboxMove),
	SandboxMoved:  row(VersionClients, (*transaction).applySandboxMoved),

	EventsAppend: byUser(row(VersionEvents, (*transaction).applyEventsAppend)),
	EventsKey:    byUser(row(VersionEvents, (*transaction).applyEventsKey)),
}

// newBody returns a pointer to a zero body of the type. All bodies are used
// through pointers.
func newBody(t CommandType) (Body, error) {
	r, known := commandTable[t]
	if !known {
		return nil, errUnknownType(t)
	}
	return r.body(), nil
}

func errUnknownType(t CommandType) error {
	return fmt.Errorf("unknown command type %q: this node is older than the cluster; upgrade it", t)
}

// MinVersion returns the protocol version that introduced a command type. Propose checks it before
// the log, Apply again.
func MinVersion(t CommandType) int { return commandTable[t].since }

// ofUser reports whether a command of the type acts for Command.UserID.
func (t CommandType) ofUser() bool { return commandTable[t].ofUser }

// OfOperator reports whether a command of the type needs an operator's key, unless it is the leader's
// own. From VersionAccess on the leader takes one from another node only with a proof of such a key.
func (t CommandType) OfOperator() bool { return commandTable[t].ofOperator }

// dispatch validates the body and calls its apply function. Propose has validated the body already,
// but an older or faulty node may have written the log entry.
func (t *transaction) dispatch(body Body) (Result, *Error) {
	r, known := commandTable[t.cmd.Type]
	if !known {
		panic(fmt.Sprintf("fsm: no apply function for command %s: upgrade this node", t.cmd.Type))
	}
	if t.cmd.Type != ProtocolRaise { // protocol.raise of an unknown version stops the node instead
		if err := validate(body, t.meta.ProtocolVersion); err != nil {
			return Result{}, asError(err)
		}
	}
	return r.apply(t, body)
}
