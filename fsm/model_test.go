package fsm

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// model is a naive version of the state machine: lists searched from the front, no indexes, no ids,
// no encoding. It covers settings, specs, sandboxes, start tasks and conversations.
type model struct {
	settings      map[string]modelSettings
	specs         []Spec
	sandboxes     []modelSandbox
	tasks         []modelTask
	conversations []modelConversation
	installation  Installation
	users         map[string]modelUser
	// starts has every start of a user; "" is all users together.
	starts map[string][]time.Time
	now    time.Time
	// claimed is the member that the last claim took.
	claimed string
}

type modelUser struct {
	Policy *Policy
	Limits *Limits
}

type modelSettings struct {
	Language, Model, BaseURL, Runtime, Base *string
	Consent                                 *bool
	Factor                                  *int64
	LLM, Search, Shared, MCP                SecretRef
}

type modelSandbox struct {
	ID, User, Spec, Image, Hash string
	CPU                         int
	Desired                     Desired
	Generation, Observed        uint64
	State                       SandboxState
	Reason                      string
	// Memory is in MiB. Pool, Claimed and the refs belong to warm pools.
	Memory             int
	Pool               string
	Claimed            bool
	Key, Init, WarmKey SecretRef
	WarmHash           string
	PausedBy           string
	DesiredAt, LastUse time.Time
	Since              time.Time
	Policy             Policy
}

type modelTask struct {
	ID, User, Conversation, V0, Sandbox string
	Status                              StartTaskStatus
	Secret                              bool
	// Pending has the ids of the messages that wait.
	Pending []string
	// Wish is the request's sandbox after inheritance.
	Wish string
	// Reservation is the reserved sandbox, nil for none.
	Reservation *modelSandbox
}

type modelConversation struct {
	ID, User, V0, Sandbox, Parent string
	Title, Repository, Branch     *string
}

// TestModel runs any log against Apply and the model and compares results and state.
func TestModel(t *testing.T) {
	t.Parallel()
	types := slices.DeleteFunc(commandTypes(), func(c CommandType) bool {
		return MinVersion(c) >= VersionHistory ||
			slices.Contains([]CommandType{TermOpen, ProtocolRaise, APIKeyCreate, APIKeyRevoke, ProvidersReplace}, c)
	})
	rapid.Check(t, func(r *rapid.T) {
		b := newModelled(t)
		for _, e := range genHistoryOf(120, types).Draw(r, "log") {
			b.run(r, e.Command)
		}
	})
}

// modelled is a store and its model.
type modelled struct {
	*testing.T
	store *Store
	model *model
	index uint64
}

// newModelled returns both with the users ada and bob, and the given specs.
func newModelled(t *testing.T, specs ...Spec) *modelled {
	b := &modelled{T: t, store: NewStore(), model: &model{
		settings: map[string]modelSettings{}, users: map[string]modelUser{
			"ada": {},
			"bob": {},
		}, starts: map[string][]time.Time{},
	}}
	for i, body := range []Body{
		&APIKeyCreateBody{
			Lookup: "ada",
			Hash:   sha("ada"),
			UserID: "ada",
		}, &APIKeyCreateBody{Lookup: "bob", Hash: sha("bob"), UserID: "bob"},
		&SpecApplyBody{Specs: specs},
	} {
		if _, err := b.store.Apply(0, NewCommand(fmt.Sprint("prologue", i), testEpoch, "", body)); err != nil {
			t.Fatal(err)
		}
	}
	b.model.specs = slices.Clone(specs)
	return b
}

// run applies one command to both and compares.
func (b *modelled) run(r *rapid.T, cmd Command) Outcome {
	b.index++
	cmd.ID, cmd.Fingerprint = fmt.Sprint(b.index), ""
	cmd = recode(b.T, cmd)
	o := b.store.ApplyBatch([]Entry{{b.index, cmd}})[0]
	// TestValidate covers the rules of a single object, TestNothingIsAppliedTwice time that goes
	// backwards.
	if code := codeOf(o.Err); code != CodeInvalid && code != CodeOutcomeUnknown {
		next := b.model.clone()
		next.now = cmd.Time
		want := next.apply(cmd)
		if got := codeOf(o.Err); got != want {
			r.Fatalf("%s %+v by %q: got %q (%v), the model says %q", cmd.Type, cmd.Body, cmd.UserID, got, o.Err, want)
		}
		if want == "" {
			b.model = next
		}
	}
	if d := cmp.Diff(b.model.picture(), pictureOf(b.store.View())); d != "" {
		r.Fatalf("after %s %+v (-model +store): %s", cmd.Type, cmd.Body, d)
	}
	return o
}

func codeOf(e *Error) Code {
	if e == nil {
		return ""
	}
	return e.Code
}

func (m *model) clone() *model {
	return &model{
		settings: maps.Clone(m.settings), specs: slices.Clone(m.specs), sandboxes: slices.Clone(m.sandboxes),
		tasks: slices.Clone(m.tasks), conversations: slices.Clone(m.conversations),
		installation: m.installation, users: maps.Clone(m.users), starts: maps.Clone(m.starts),
	}
}

// apply changes the model and returns the code. The caller discards the changes of a failure.
func (m *model) apply(c Command) Code {
	switch b := c.Body.(type) {
	case *SettingsPutBody:
		m.putSettings(c.UserID, b)
	case *SpecApplyBody:
		m.applySpecs(b)
	case *SpecDeleteBody:
		i := slices.IndexFunc(m.specs, func(s Spec) bool { return s.ID == b.ID })
		if i < 0 {
			return CodeNotFound
		}
		m.specs = slices.Delete(m.specs, i, i+1)
	case *SandboxCreateBody:
		return m.createSandbox(c.UserID, b, nil)
	case *SandboxPauseBody:
		return m.wish(c.UserID, b.ID, func(s *modelSandbox) bool { return s.Desired != DesiredPaused }, DesiredPaused)
	case *SandboxResumeBody:
		return m.resume(c.UserID, b.ID, func(s *modelSandbox) bool {
			return s.Desired == DesiredPaused || s.State == SandboxError && s.Observed == s.Generation
		}, nil)
	case *SandboxDeleteBody:
		return m.wish(c.UserID, b.ID, func(*modelSandbox) bool { return true }, DesiredDeleted)
	case *SandboxObserveBody:
		for _, o := range b.Observations {
			if s := m.sandbox(o.ID); s != nil && s.Generation == o.Status.Generation {
				if s.State != o.Status.State {
					s.Since = m.now
				}
				s.State, s.Reason, s.Observed = o.Status.State, o.Status.Reason, s.Generation
			}
		}
	case *SandboxRemoveBody:
		if s := m.sandbox(b.ID); s != nil && s.Desired != DesiredDeleted {
			return CodeConflict
		}
		m.sandboxes = slices.DeleteFunc(m.sandboxes, func(s modelSandbox) bool { return s.ID == b.ID })
	default:
		return m.applyNewer(c)
	}
	return ""
}

// applyTask is the part of apply for start tasks.
func (m *model) applyTask(c Command) Code {
	switch b := c.Body.(type) {
	case *StartTaskCreateBody:
		return m.createTask(c.UserID, b)
	case *StartTaskBindBody:
		return m.bindTask(b)
	case *StartTaskAdvanceBody:
		t, code := m.openTask(b.ID)
		if code != "" {
			return code
		}
		order := []StartTaskStatus{
			StartTaskWorking,
			StartTaskWaitingForSandbox,
			StartTaskPreparingRepository,
			StartTaskStartingConversation,
		}
		if slices.Index(order, b.Status) < slices.Index(order, t.Status) || t.Sandbox == "" && b.Status != StartTaskWorking {
			return CodeConflict
		}
		t.Status = b.Status
		if len(t.Pending) > 0 && t.Pending[0] == b.Delivered {
			t.Pending = t.Pending[1:]
		}
	case *StartTaskQueueBody:
		t := m.task(b.ID)
		switch {
		case t == nil || t.User != c.UserID:
			return CodeNotFound
		case t.Status == StartTaskReady || t.Status == StartTaskError || slices.Contains(t.Pending, b.Message.ID):
			return CodeConflict
		}
		t.Pending = append(t.Pending, b.Message.ID)
	case *StartTaskFinishBody:
		if t := m.task(b.ID); t != nil && t.Status == StartTaskReady {
			return ""
		}
		t, code := m.openTask(b.ID)
		if code != "" {
			return code
		}
		if t.Sandbox == "" || len(t.Pending) > 0 {
			return CodeConflict
		}
		t.Status, t.Secret = StartTaskReady, false
		m.conversations = append(m.conversations, modelConversation{
			ID: t.Conversation, User: t.User, V0: t.V0, Sandbox: t.Sandbox, Title: b.Conversation.Title,
			Parent: valueOr(b.Conversation.ParentID, ""),
		})
	case *StartTaskFailBody:
		t, code := m.openTask(b.ID)
		if code != "" {
			return code
		}
		t.Status, t.Secret, t.Reservation = StartTaskError, false, nil
	}
	return ""
}

func (m *model) putSettings(user string, b *SettingsPutBody) {
	v := b.Values
	was := m.settings[user]
	next := modelSettings{
		Language: v.Language, Model: v.LLMModel, BaseURL: v.LLMBaseURL, Consent: v.UserConsentsToAnalytics,
		Runtime: v.SandboxRuntimeContainerImage, Base: v.SandboxBaseContainerImage, Factor: v.RemoteRuntimeResourceFactor,
		LLM: was.LLM, Search: was.Search, Shared: was.Shared, MCP: b.MCPConfig,
	}
	if next.Model == nil {
		next.Model = was.Model
	}
	if next.BaseURL == nil {
		next.BaseURL = was.BaseURL
	}
	if next.Consent == nil {
		next.Consent = was.Consent
	}
	if b.LLMAPIKey != nil {
		next.LLM = *b.LLMAPIKey
	}
	if b.SearchAPIKey != nil {
		next.Search = *b.SearchAPIKey
	}
	if b.SandboxAPIKey != nil {
		next.Shared = *b.SandboxAPIKey
	}
	m.settings[user] = next
}

func (m *model) applySpecs(b *SpecApplyBody) {
	for i := range b.Specs {
		for _, old := range m.specs {
			if old.ID == b.Specs[i].ID && b.Specs[i].Pool == 0 && !(b.OnlyIfNone && len(m.specs) > 0) {
				b.Specs[i].Pool = old.Pool
			}
		}
	}
	switch {
	case b.OnlyIfNone && len(m.specs) > 0:
	case b.Replace:
		m.specs = slices.Clone(b.Specs)
	default:
		for _, s := range b.Specs {
			if i := slices.IndexFunc(m.specs, func(o Spec) bool { return o.ID == s.ID }); i >= 0 {
				m.specs[i] = s
			} else {
				m.specs = append(m.specs, s)
			}
		}
	}
}

func (m *model) sandbox(id string) *modelSandbox {
	for i := range m.sandboxes {
		if m.sandboxes[i].ID == id {
			return &m.sandboxes[i]
		}
	}
	return nil
}

func (m *model) createSandbox(user string, b *SandboxCreateBody, promised *modelTask) Code {
	i := slices.IndexFunc(m.specs, func(s Spec) bool { return b.SpecID == "" || s.ID == b.SpecID })
	if i < 0 {
		return CodeNotFound
	}
	spec := m.specs[i]
	n := m.newSandbox(user, spec)
	if b.Warm {
		return m.claim(user, &n, promised)
	}
	n.ID, n.Hash, n.Key = b.ID, b.KeyHash, b.KeyRef
	if m.sandbox(b.ID) != nil || m.hasKey(b.KeyHash) {
		return CodeConflict
	}
	return m.start(&n, promised)
}

// newSandbox returns the sandbox that a user gets from a spec.
func (m *model) newSandbox(user string, spec Spec) modelSandbox {
	n := modelSandbox{
		User: user, Spec: spec.ID, Image: "agent:1", CPU: spec.Template.CPU, Memory: spec.Template.Memory,
		Desired: DesiredRunning, DesiredAt: m.now, Generation: 1, State: SandboxStarting, Since: m.now,
		Policy: spec.Template.Policy,
	}
	if set, ok := m.settings[user]; ok {
		if set.Runtime != nil && *set.Runtime != "" {
			n.Image = *set.Runtime
		} else if set.Base != nil && *set.Base != "" {
			n.Image = *set.Base
		}
		factor := 1
		switch {
		case set.Factor == nil || *set.Factor < 1:
		case *set.Factor > 64:
			factor = 64
		default:
			factor = int(*set.Factor)
		}
		n.CPU *= factor
		n.Memory *= factor
	}
	return n
}

// wish changes the desired state of a user's sandbox if the condition when holds.
func (m *model) wish(user, id string, when func(*modelSandbox) bool, d Desired) Code {
	s := m.sandbox(id)
	if s == nil || s.User != user || s.Desired == DesiredDeleted {
		return CodeNotFound
	}
	if when(s) {
		s.wish(d, m.now, "")
	}
	return ""
}

func (m *model) task(id string) *modelTask {
	for i := range m.tasks {
		if m.tasks[i].ID == id {
			return &m.tasks[i]
		}
	}
	return nil
}

func (m *model) openTask(id string) (*modelTask, Code) {
	t := m.task(id)
	switch {
	case t == nil:
		return nil, CodeNotFound
	case t.Status == StartTaskReady || t.Status == StartTaskError:
		return nil, CodeConflict
	}
	return t, ""
}

func (m *model) createTask(user string, b *StartTaskCreateBody) Code {
	taken := false
	for _, t := range m.tasks {
		done := t.Status == StartTaskReady || t.Status == StartTaskError
		taken = taken || t.User == user && t.Conversation == b.ConversationID && !done
	}
	wish := ""
	parentFound := false
	for _, c := range m.conversations {
		if c.User != user {
			continue
		}
		taken = taken || c.ID == b.ConversationID || b.V0ID != "" && c.V0 == b.V0ID
		if p := b.Request.ParentConversationID; p != nil && *p == c.ID {
			parentFound, wish = true, c.Sandbox
		}
	}
	if b.Request.SandboxID != nil {
		wish = *b.Request.SandboxID
	}
	switch {
	case taken && b.Join:
		return ""
	case taken || m.task(b.ID) != nil:
		return CodeConflict
	case b.Request.ParentConversationID != nil && !parentFound:
		return CodeNotFound
	}
	m.tasks = append(m.tasks, modelTask{
		ID: b.ID, User: user, Conversation: b.ConversationID, V0: b.V0ID, Status: StartTaskWorking,
		Secret: !b.Secrets.IsZero(), Wish: wish,
	})
	if wish != "" {
		if s := m.sandbox(wish); s != nil && s.User == user && s.Desired == DesiredPaused {
			return m.resume(user, wish, func(*modelSandbox) bool { return true }, nil)
		}
		return ""
	}
	reservation := modelSandbox{User: user, Desired: DesiredRunning}
	if len(m.specs) > 0 {
		reservation = m.newSandbox(user, m.specs[0])
		warm := reservation
		if code := m.claim(user, &warm, nil); b.Request.ConversationID == nil && code != CodePoolEmpty {
			m.tasks[len(m.tasks)-1].Sandbox = m.claimed
			return code
		}
	}
	return m.start(&reservation, &m.tasks[len(m.tasks)-1])
}

func (m *model) bindTask(b *StartTaskBindBody) Code {
	t, code := m.openTask(b.ID)
	if code != "" || t.Sandbox != "" {
		return code
	}
	if b.Create != nil {
		code = m.createSandbox(t.User, b.Create, t)
	} else {
		code = m.resume(t.User, b.SandboxID, func(s *modelSandbox) bool { return s.Desired == DesiredPaused }, t)
	}
	if code != "" {
		return code
	}
	t.Sandbox, t.Status, t.Reservation = b.SandboxID, StartTaskWaitingForSandbox, nil
	if b.Create != nil && b.Create.Warm {
		t.Sandbox = m.claimed
	}
	return ""
}
