package fsm

import "fmt"

// commandRow is what the package knows of one command type. A new command is
// one row of commandTable and its file.
type commandRow struct {
	// body gives a pointer to a zero body.
	body func() Body
	// apply runs on a body that is valid.
	apply func(*transaction, Body) (Result, *Error)
	// since is the protocol version that the type came with; 0 is valid always.
	since int
	// ofUser: the command acts for Command.UserID.
	ofUser bool
}

// byUser marks a command that acts for Command.UserID.
func byUser(r commandRow) commandRow {
	r.ofUser = true
	return r
}

// row makes the row of a command that came with a protocol version.
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
// term.open and protocol.raise are valid at every version: a version is raised
// with them.
var commandTable = map[CommandType]commandRow{
	TermOpen:      row(0, (*transaction).applyTermOpen),
	ProtocolRaise: row(0, (*transaction).applyProtocolRaise),

	InstallationConfigure: row(1, (*transaction).applyInstallationConfigure),
	APIKeyCreate:          row(1, (*transaction).applyAPIKeyCreate),
	APIKeyRevoke:          row(1, (*transaction).applyAPIKeyRevoke),
	UserConfigure:         row(1, (*transaction).applyUserConfigure),
	SettingsPut:           byUser(row(1, (*transaction).applySettingsPut)),
	ProvidersReplace:      byUser(row(1, (*transaction).applyProvidersReplace)),

	SpecApply:  row(1, (*transaction).applySpecApply),
	SpecDelete: row(1, (*transaction).applySpecDelete),
	SpecPool:   row(1, (*transaction).applySpecPool),
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
	ConversationUpdate: byUser(row(1, (*transaction).applyConversationUpdate)),
	ConversationDelete: byUser(row(1, (*transaction).applyConversationDelete)),

	MarkNote:       row(3, (*transaction).applyMarkNote),
	HoldBegin:      row(3, (*transaction).applyHoldBegin),
	HoldRelease:    row(3, (*transaction).applyHoldRelease),
	RemovalReserve: row(3, (*transaction).applyRemovalReserve),
	OrphanNote:     row(3, (*transaction).applyOrphanNote),
	OrphanDelete:   row(3, (*transaction).applyOrphanDelete),
	OrphanForget:   row(3, (*transaction).applyOrphanForget),
	SandboxAdopt:   row(3, (*transaction).applySandboxAdopt),
	APIKeyEnable:   row(3, (*transaction).applyAPIKeyEnable),
	BackupNote:     row(3, (*transaction).applyBackupNote),

	CertificateRevoke: row(3, (*transaction).applyCertificateRevoke),

	SandboxAcceptWorkspace: byUser(row(3, (*transaction).applySandboxAcceptWorkspace)),
}

// newBody returns a pointer to a zero body of the type. All bodies are used
// through pointers.
func newBody(t CommandType) (Body, error) {
	r, known := commandTable[t]
	if !known {
		return nil, fmt.Errorf("unknown command type %q: this node is older than the cluster; upgrade it", t)
	}
	return r.body(), nil
}

// MinVersion is the protocol version a command type came with. Propose asks it
// before the log, Apply again.
func MinVersion(t CommandType) int { return commandTable[t].since }

// ofUser reports whether a command of the type acts for Command.UserID.
func (t CommandType) ofUser() bool { return commandTable[t].ofUser }

// dispatch validates the body and calls its apply function. Bodies are
// validated here again although Propose did it before the log: the log is the
// border, and an older or a faulty node may have written what is in it.
func (t *transaction) dispatch(body Body) (Result, *Error) {
	r, known := commandTable[t.cmd.Type]
	if !known {
		panic(fmt.Sprintf("fsm: no apply function for command %s: upgrade this node", t.cmd.Type))
	}
	if t.cmd.Type != ProtocolRaise { // it stops the node first, where it must
		if err := body.Validate(); err != nil {
			return Result{}, asError(err)
		}
	}
	return r.apply(t, body)
}
