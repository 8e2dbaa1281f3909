package fsm

import (
	"cmp"
	"fmt"
	"reflect"
)

// The bounds of what users keep in the state, in bytes, where Limits.StateBytes is 0.
const (
	DefaultUserStateBytes         = 64 << 20
	DefaultInstallationStateBytes = 1 << 30
	// MinStateBytes is the least that Limits.StateBytes may be.
	MinStateBytes = 1 << 20
)

// The parts of a row's size, in bytes.
const (
	// rowGranule rounds the size of a row, so that small changes don't change the counters.
	rowGranule = 256
	// rowOverhead is what every row costs beside its texts: its struct and its entries in the indexes.
	rowOverhead = 512
	// sandboxOverhead is a sandbox's, with its status and placement.
	sandboxOverhead = 1024
	// openTaskOverhead is what an unfinished start task counts for beside its own size: the
	// conversation and the sandbox that it becomes.
	openTaskOverhead = 8 << 10
	// elementOverhead is what an element of a list or a map costs beside its text.
	elementOverhead = 16
	// resultAllowance is what a growing command with an Idempotency-Key needs for its result.
	resultAllowance = 4 << 10
	// maxDoneBytes bounds the finished start tasks of one user, like MaxDoneTasks.
	maxDoneBytes = 8 << 20
)

// rowBytes returns what a row counts for in its user's state: settings, profiles, names of secrets,
// git providers, sandboxes, conversations, start tasks and results of commands, and the secrets that
// they refer to or did until ReplacedTTL ago. Other rows count for nothing: operators and the leader
// write them, and of API keys a user makes few (MaxOwnKeys, EndedKeys). It depends on the row alone.
func (m *meta) rowBytes(row any) (user string, bytes int) {
	if !m.active(VersionRoom) {
		return textBytesOf(row)
	}
	user, bytes = heapOfRow(row)
	if r, ok := row.(referrer); ok {
		for _, ref := range r.secretRefs() {
			if !ref.IsZero() {
				bytes += refHeap + len(ref.Path) + len(ref.Created) + ref.Bytes
			}
		}
	}
	return user, sized(bytes)
}

// What the parts of a row take in the memory of a node, in bytes, as measured: its struct, its entries
// in the indexes, and what its texts cost beside their letters. TestState_HeapIsWhatIsCounted compares.
// They are constants, not sizes of types, because all versions of the program must count alike.
const (
	conversationHeap = 1450
	sandboxHeap      = 3500
	taskHeap         = 2300
	settingsHeap     = 1200
	secretHeap       = 550
	providerHeap     = 1000
	lostHeap         = 550
	replacedHeap     = 800
	setupHeap        = 500
	profileHeap      = 900
	sessionHeap      = 1500
	signInCodeHeap   = 1500
	deviceHeap       = 2000
	chainHeap        = 96
	saidHeap         = 160
	resultHeap       = 1250
	errorHeap        = 100
	// A result holds a row without the entries in the indexes.
	resultSandboxHeap      = 1900
	resultConversationHeap = 400
	resultTaskHeap         = 800
	resultProfileHeap      = 250
	resultAPIKeyHeap       = 350
	// refHeap is what a reference costs, with its row of tableSecretRefs.
	refHeap = 350
)

// heapOfRow returns what a row takes in memory without its references.
func heapOfRow(row any) (user string, bytes int) {
	switch row := row.(type) {
	case *Settings:
		return row.UserID, settingsHeap + row.Values.textBytes() + row.endpointBytes()
	case *CustomSecret:
		return row.UserID, secretHeap + len(row.Name) + len(row.Description)
	case *Provider:
		return row.UserID, providerHeap + len(valueOr(row.Host, "")) + len(valueOr(row.ExternalUserID, ""))
	case *Conversation:
		bytes := conversationHeap + textBytes(reflect.ValueOf(row))
		if row.Events != nil {
			bytes += chainHeap
		}
		if row.Said != nil {
			bytes += saidHeap + len(row.Said.Status) + len(row.Said.Usage.Model)
		}
		return row.UserID, bytes
	case *Sandbox:
		return row.UserID, sandboxHeap + row.textBytes()
	case *StartTask:
		bytes := taskHeap + row.textBytes()
		if !row.Done() {
			bytes += openTaskOverhead
		}
		return row.UserID, bytes
	case *commandRecord:
		return row.UserID, row.heap()
	case *replacedSecret:
		return row.UserID, replacedHeap + len(row.UserID) + len(row.Path) + row.Bytes
	case *Setup:
		return row.UserID, setupHeap + len(row.UserID) + 2*(len(row.Repository)+len(row.Hash))
	case *Profile:
		return row.UserID, profileHeap + row.textBytes()
	case *Session:
		return row.UserID, sessionHeap + 2*len(row.UserID)
	case *SignInCode:
		return row.UserID, signInCodeHeap + 2*len(row.UserID)
	case *Device:
		if row.UserID != "" {
			return row.UserID, deviceHeap + len(row.Name) + len(row.Address) + len(row.Network) + 2*len(row.UserID)
		}
	case *Orphan:
		if row.Owner != "" {
			return row.Owner, lostHeap + len(
				row.Sandbox,
			) + len(
				row.Birth,
			) + len(
				row.Owner,
			) + len(
				row.Client,
			) + len(
				row.Volume,
			) + len(
				row.SpecID,
			)
		}
	}
	return "", 0
}

// heap returns what the result of a command takes in memory.
func (r *commandRecord) heap() int {
	n := resultHeap + len(r.ID) + len(r.Fingerprint)
	if r.Err != nil {
		n += errorHeap + len(r.Err.Message)
	}
	if s := r.Result.Sandbox; s != nil {
		n += resultSandboxHeap + s.textBytes()
	}
	if c := r.Result.Conversation; c != nil {
		n += resultConversationHeap + textBytes(reflect.ValueOf(c))
	}
	if t := r.Result.StartTask; t != nil {
		n += resultTaskHeap + t.textBytes()
	}
	if p := r.Result.Profile; p != nil {
		n += resultProfileHeap + p.textBytes()
	}
	// Operators' commands have such results below VersionOwnKeys, and count as they did there.
	if k := r.Result.APIKey; k != nil && r.Type == string(OwnKeyCreate) {
		n += resultAPIKeyHeap + len(k.Name) + len(k.UserID)
	}
	return n
}

func textBytesOf(row any) (user string, bytes int) {
	switch row := row.(type) {
	case *Settings:
		return row.UserID, sized(rowOverhead + row.Values.textBytes())
	case *CustomSecret:
		return row.UserID, sized(rowOverhead + len(row.Name) + len(row.Description))
	case *Provider:
		return row.UserID, sized(rowOverhead + len(valueOr(row.Host, "")) + len(valueOr(row.ExternalUserID, "")))
	case *Conversation:
		return row.UserID, sized(rowOverhead + textBytes(reflect.ValueOf(row)))
	case *Sandbox:
		return row.UserID, row.bytes()
	case *StartTask:
		return row.UserID, row.bytes()
	case *commandRecord:
		return row.UserID, sized(row.weight())
	}
	return "", 0
}

// sized rounds a size up to whole granules.
func sized(bytes int) int { return (bytes + rowGranule - 1) / rowGranule * rowGranule }

// bytes returns a sandbox's size.
func (s *Sandbox) bytes() int {
	return sized(sandboxOverhead + s.textBytes())
}

// textBytes returns the bytes of a sandbox's texts.
func (s *Sandbox) textBytes() int {
	p := &s.Template
	n := len(p.Image) + len(p.Command) + len(s.Status.Detail)
	for _, a := range p.Args {
		n += len(a) + elementOverhead
	}
	for k, v := range p.Env {
		n += len(k) + len(v) + 2*elementOverhead
	}
	return n
}

// StateBytes returns what the start task counts for in its user's state (Limits.StateBytes), in
// bytes.
func (t *StartTask) StateBytes() int { return t.bytes() }

// bytes returns a start task's size.
func (t *StartTask) bytes() int {
	n := rowOverhead + t.textBytes()
	if !t.Done() {
		n += openTaskOverhead
	}
	return sized(n)
}

// textBytes returns the bytes of a start task's texts.
func (t *StartTask) textBytes() int {
	n := textBytes(
		reflect.ValueOf(&t.Request),
	) + len(
		t.Detail,
	) + len(
		t.AgentServerURL,
	) + t.LLM.textBytes() + t.Setup.textBytes()
	if t.AgentProfile != nil {
		n += elementOverhead + len(t.AgentProfile.ID)
	}
	for i := range t.Pending {
		n += elementOverhead + textBytes(reflect.ValueOf(&t.Pending[i]))
	}
	return n
}

// textBytes sums the texts in a value, and elementOverhead for each element of a list or a map.
func textBytes(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return textBytes(v.Elem())
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return v.Len()
		}
		for i := range v.Len() {
			n += elementOverhead + textBytes(v.Index(i))
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			n += 2*elementOverhead + textBytes(it.Key()) + textBytes(it.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += textBytes(v.Field(i))
		}
	default: // a number costs no more than its row's overhead
	}
	return n
}

// withoutBodies returns the request of a task that has ended: the texts for the agent are gone.
func (q StartRequest) withoutBodies() StartRequest {
	if q.InitialMessage != nil {
		m := *q.InitialMessage
		m.Content = []ContentBlock{}
		q.InitialMessage = &m
	}
	q.SystemMessageSuffix = nil
	return q
}

// withoutLarge returns the part of a request that the result of a command keeps.
func (q StartRequest) withoutLarge() StartRequest {
	q = q.withoutBodies()
	q.Processors, q.Plugins, q.Secrets = nil, nil, nil
	q.ObservabilityMetadata, q.ObservabilityTags = nil, nil
	return q
}

// stateLimits returns the bounds of a user's state and of the installation's, in bytes.
func (t *transaction) stateLimits(user string) (mine, all int) {
	in := &t.meta.Installation
	mine, all = t.limitsOf(user).StateBytes, in.Overall.StateBytes
	mine = cmp.Or(mine, in.PerUser.StateBytes, DefaultUserStateBytes)
	all = cmp.Or(all, DefaultInstallationStateBytes)
	return mine, all
}

// mayGrow refuses to add bytes to a user's state over its limit or the installation's. What needs no
// more room is never refused. Commands that a user sends to add something ask it before they write;
// what the leader records about what was admitted does not ask.
func (t *transaction) mayGrow(user string, bytes int) *Error {
	if bytes <= 0 || !t.meta.active(VersionAccess) {
		return nil
	}
	if t.cmd.Fingerprint != "" {
		bytes += resultAllowance
	}
	mine, all := t.stateLimits(user)
	switch {
	case t.over(user, bytes, mine):
		return overState(LimitOfUser, fmt.Sprintf(
			"your limit of stored state (%d bytes) is reached: delete conversations, sandboxes or custom secrets, "+
				"or ask the operator for more", mine))
	case t.over("", bytes, all):
		return overState(LimitOfInstallation, fmt.Sprintf(
			"the installation's limit of stored state (%d bytes) is reached: delete conversations or sandboxes, "+
				"or ask the operator to raise it", all))
	}
	return nil
}

// over reports whether more bytes exceed the limit of a user, "" for the installation. What has expired
// counts for nothing: a command first removes what it needs, and a view leaves it out.
func (t *transaction) over(user string, bytes, limit int) bool {
	used := usageOf(t.txn, user).StateBytes + bytes
	if used <= limit || !t.meta.active(VersionRoom) {
		return used > limit
	}
	var gone []*replacedSecret
	for r := range withPrefix[replacedSecret](t.txn, tableReplaced, indexTime, nil) {
		if used <= limit || !r.expired(t.now) {
			break
		}
		gone = append(gone, r)
		if of, n := t.meta.rowBytes(r); user == "" || of == user {
			used -= n
		}
	}
	var expired []*commandRecord
	for r := range withPrefix[commandRecord](t.txn, tableClientCommands, indexTime, nil) {
		if used <= limit || !r.expired(t.now) {
			break
		}
		expired = append(expired, r)
		if of, n := t.meta.rowBytes(r); user == "" || of == user {
			used -= n
		}
	}
	if t.store != nil {
		for _, r := range expired {
			t.forget(r)
		}
		for _, r := range gone {
			drop(t, tableReplaced, r)
		}
	}
	return used > limit
}

func overState(scope, message string) *Error {
	return &Error{Code: CodeLimit, Message: message, RetryAfter: limitRetry, Limit: scope + LimitState}
}

// growthOf returns how much storing next in place of old adds to the state. old may be nil.
func growthOf[T any](m *meta, old, next *T) int {
	_, n := m.rowBytes(next)
	if old != nil {
		_, was := m.rowBytes(old)
		n += m.replacedBytes(old, refsOf(next)) - was
	}
	return n
}

// StateLimits returns the bounds of a user's state and of the installation's, in bytes. They are
// enforced from VersionAccess on. View.Usage has what is used.
func (v *View) StateLimits(userID string) (user, installation int) {
	t := transaction{txn: v.txn, meta: v.meta}
	return t.stateLimits(userID)
}

// LargestState returns the most state that one user keeps, in bytes.
func (v *View) LargestState() (most int) {
	for row := range withPrefix[usageRow](v.txn, tableUsage, indexID, nil) {
		if row.user != "" {
			most = max(most, row.StateBytes)
		}
	}
	return most
}

// full reports whether the result of a command does not fit its user's state.
func (t *transaction) full(r *commandRecord) bool {
	user, bytes := t.meta.rowBytes(r)
	if user == "" {
		return false
	}
	mine, all := t.stateLimits(user)
	return t.over(user, bytes, mine) || t.over("", bytes, all)
}
