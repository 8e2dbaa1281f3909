package fsm

import (
	"bufio"
	"fmt"
	"io"
)

// ProtocolVersion is the newest replicated protocol version that this binary knows. The cluster's
// own version (View.ProtocolVersion) starts at 1. protocol.raise raises it: the leader proposes it
// in a new cluster, an operator in one that was upgraded, once every node knows the version.
//
// The version rises with every new command type and with every change to what an existing command
// does to the state, including a stricter rule of a body: until all nodes know the change, all must
// behave as the older ones do. Version 2 lets one log entry hold several commands. Version 3
// records the history (history.go): terms with nonces, births, holds, orphans. Version 4 counts the
// lengths of texts in characters. Version 5 narrows what users, keys and nodes may do. Version 6
// replaces the keys of sandboxes, and revokes nodes by their names. Version 7 keeps the whole
// configuration of the cluster, marks clients, and records copies and moves of workspaces. Version
// 8 configures the model gateway, counts what models were used for, gives specs agents, which
// settings and starts choose, and puts conversations into sandboxes together. Version 9 counts what
// is kept as the memory that it takes, collects what has expired, has a drain move one workspace
// first, has starts ask about a repository's files that run by themselves, and has voters say whom
// they voted for, so that a follower believes no leader without a majority's votes. Version 10
// encrypts copies of workspaces, and gives commands a binary header. Version 11 keeps profiles of
// models and agents, and sessions of browsers, lets users make keys of their own, and has starts
// ask for an agent that plans. Version 12 keeps the events of conversations, has a pause leave the
// job running for a while, and lets terminals log in with a browser.
const ProtocolVersion = 12

// What each protocol version introduced.
const (
	// VersionBatches: a log entry, and a message from a node to the leader, may hold several commands.
	VersionBatches = 2
	// VersionHistory: the history is recorded, members are identified by their ids, and Apply checks
	// credentials and keeps parents and children together.
	VersionHistory = 3
	// VersionCharacters: the lengths of texts are counted in characters, before in bytes.
	VersionCharacters = 4
	// VersionDrainedMembers: a claim passes over members whose Nomad client is being drained.
	VersionDrainedMembers = 4
	// VersionAccess: users can be disabled, keys have roles, and the state of a user is bounded.
	VersionAccess = 5
	// VersionRotate: the key of a sandbox can be replaced, its row says that its server has answered
	// a challenge, and all certificates of a node can be revoked.
	VersionRotate = 6
	// VersionConfig: the installation's configuration has git providers and web origins, an index, and
	// is changed by compare-and-set.
	VersionConfig = 7
	// VersionClients: clients can be marked as draining or lost, and workspaces are copied and moved.
	VersionClients = 7
	// VersionModels: the configuration has the model gateway's, and nodes report what models were used
	// for.
	VersionModels = 8
	// VersionAgents: specs have agents, settings and starts choose one, and a user's conversations may
	// share sandboxes.
	VersionAgents = 8
	// VersionStarts: messages wait for the conversation that is being started.
	VersionStarts = 8
	// VersionRoom: the state is counted as the memory that it takes, expired results of commands and
	// keys that are revoked for long give their room back, and a deleted user leaves no result. A limit
	// pauses no sandbox of an accepted start. A drain moves one workspace first, and its mark says how
	// far it is. What a lost client still has is an orphan on record.
	VersionRoom = 9
	// VersionEndpoints: a conversation keeps the endpoint of models that it began with.
	VersionEndpoints = 9
	// VersionSetup: a start asks its user before the files of a repository run by themselves.
	VersionSetup = 9
	// VersionPeers: a follower takes a leader's entries only with the proof of its election.
	VersionPeers = 9
	// VersionCopies: copies of workspaces are encrypted, and have the generation that they are of.
	VersionCopies = 10
	// VersionBinary: commands have a binary header (Command.EncodeBinary).
	VersionBinary = 10
	// VersionProfiles: users have profiles of models and of agents, single custom secrets are stored and
	// removed, and settings are changed member by member.
	VersionProfiles = 11
	// VersionSessions: browsers sign in, by sessions and one-time codes.
	VersionSessions = 11
	// VersionOwnKeys: users make and revoke keys of their own.
	VersionOwnKeys = 11
	// VersionPlans: a start may ask for an agent that plans.
	VersionPlans = 11
	// VersionEvents: the state has chains of events, and each node keeps the events themselves.
	VersionEvents = 12
	// VersionStops: a pause may leave the job running for a while (SandboxPauseBody.StopAfter).
	VersionStops = 12
	// VersionServers: the configuration says more of single servers of models, and of models.
	VersionServers = 12
	// VersionDevices: a user allows the request of a device, such as a terminal, for a key of its own.
	VersionDevices = 12
)

// VersionBrings says in words what a protocol version brings, "" for one that this program does not
// know.
func VersionBrings(version int) string {
	switch version {
	case VersionBatches:
		return "several commands share an entry of the log"
	case VersionHistory:
		return "the history of terms, holds and orphans; keys are checked again in the log"
	case VersionCharacters:
		return "lengths of texts in characters; draining Nomad clients get no new sandboxes"
	case VersionAccess:
		return "users can be disabled, keys have roles, a user's state is bounded"
	case VersionRotate:
		return "keys of sandboxes are replaced; all certificates of a node are revoked at once"
	case VersionConfig: // VersionClients, too
		return "git and cors are the cluster's, and its configuration has an index; Nomad clients are drained or given up"
	case VersionModels: // VersionAgents and VersionStarts, too
		return "the model gateway and what models were used for; agents of specs; " +
			"conversations share a sandbox; messages wait for starts"
	case VersionRoom: // VersionEndpoints, VersionSetup and VersionPeers, too
		return "the state is counted as the memory that it takes, and what has expired gives its room back; " +
			"conversations keep their models' endpoint; a drain moves one workspace first, " +
			"and what lost clients still have is on record; starts ask before a repository's files run; " +
			"a follower believes no leader without a majority's votes"
	case VersionCopies: // VersionBinary, too
		return "copies of workspaces are encrypted; commands have a binary header, which nodes read in less time"
	case VersionProfiles: // VersionSessions, VersionOwnKeys and VersionPlans, too
		return "users have profiles of models and agents, change single settings and secrets, and make API keys of " +
			"their own; browsers sign in with a session; a start may ask for an agent that plans"
	case VersionEvents: // VersionStops, VersionServers and VersionDevices, too
		return "events of conversations are the cluster's: on a majority, in order, and read from any node; " +
			"a Stop on the web page is taken back without a start; the configuration has certificates, headers and " +
			"slots of servers of models, and profiles of models; terminals log in with a browser"
	}
	return ""
}

// NeedsVersion is the error for what the cluster can't do below a protocol version. what begins the
// sentence.
func NeedsVersion(what string, version, has int) *Error {
	return Errorf(CodeProtocol, "%s needs protocol version %d and the cluster is at %d: upgrade every node, "+
		"then \"bivouac operator protocol set %d\"",
		what, version, has, version)
}

// errNewer is the error of a state or log that needs a newer program.
func errNewer(version int) error {
	return fmt.Errorf("the cluster moved to protocol version %d and this program knows %d: "+
		"start the newer program again; from \"bivouac operator protocol set\" on there is no way back to this one",
		version, ProtocolVersion)
}

// CheckLogged refuses an encoded command that raises the protocol version beyond this program's. It
// decodes no other command.
func CheckLogged(command []byte) error {
	if !ofType(command, ProtocolRaise) {
		return nil
	}
	cmd, err := DecodeCommand(command)
	if err != nil {
		return err
	}
	if b, ok := cmd.Body.(*ProtocolRaiseBody); ok && b.Version > ProtocolVersion {
		return errNewer(b.Version)
	}
	return nil
}

// CheckSnapshot refuses a snapshot that this program can't read, by its header alone.
func CheckSnapshot(r io.Reader) error {
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading the header of a snapshot: %w", unexpected(err))
	}
	return new(loader).readHeader(line)
}

// active reports whether the changes of a protocol version are in force. Below that version some
// nodes may not know them, and all nodes must compute the same state.
func (m *meta) active(version int) bool { return m.ProtocolVersion >= version }

// Active reports whether the changes of a protocol version are in force.
func (v *View) Active(version int) bool { return v.meta.active(version) }

// applyProtocolRaise raises the version. A lower or equal version changes nothing. A version that
// this binary does not know stops the node, like an unknown command, because later commands would
// be unknown too.
func (t *transaction) applyProtocolRaise(b *ProtocolRaiseBody) (Result, *Error) {
	if b.Version > ProtocolVersion {
		panic(fmt.Sprintf("fsm: the cluster moved to protocol version %d and this node knows %d: upgrade it",
			b.Version, ProtocolVersion))
	}
	if err := Validate(b); err != nil {
		return Result{}, asError(err)
	}
	old := t.meta.ProtocolVersion
	t.meta.ProtocolVersion = max(old, b.Version)
	if old < VersionHistory && t.meta.active(VersionHistory) {
		t.beginHistory()
		t.showChildren()
	}
	if old < VersionAccess && t.meta.active(VersionAccess) {
		t.giveRoles()
	}
	if old < VersionRoom && t.meta.active(VersionRoom) {
		t.countAgain(old)
	}
	return Result{}, nil
}

// showChildren clears missing parents, which earlier versions left, so that listings show the
// conversations.
func (t *transaction) showChildren() {
	for _, old := range collect(withPrefix[Conversation](t.txn, tableConversations, indexID, nil)) {
		c := *old
		if t.leaveParent(&c); c.ParentID != old.ParentID {
			put(t, tableConversations, old, &c)
		}
	}
}
