package fsm

import (
	"fmt"
	"slices"
	"time"
)

// The part of the model for policies, limits, warm pools and changes of conversations.

// applyNewer is the part of apply for those commands.
func (m *model) applyNewer(c Command) Code {
	switch b := c.Body.(type) {
	case *InstallationConfigureBody:
		m.installation = b.Installation
	case *UserConfigureBody:
		if _, ok := m.users[b.UserID]; !ok {
			return CodeNotFound
		}
		m.users[b.UserID] = modelUser{b.Policy, b.Limits}
	case *SpecPoolBody:
		i := slices.IndexFunc(m.specs, func(s Spec) bool { return s.ID == b.ID })
		if i < 0 {
			return CodeNotFound
		}
		m.specs[i].Pool = b.Size
	case *PoolAddBody:
		return m.addMember(b)
	case *PoolDropBody:
		if s := m.sandbox(b.ID); s != nil && s.User == "" && s.Desired != DesiredDeleted {
			s.wish(DesiredDeleted, m.now, "")
		}
	case *SandboxTouchBody:
		for _, touch := range b.Touches {
			s := m.sandbox(touch.ID)
			at := touch.At
			if at.After(m.now) {
				at = m.now
			}
			if s != nil && s.User != "" && s.Desired != DesiredDeleted && !at.Before(s.LastUse.Add(time.Second)) {
				s.LastUse = at
			}
		}
	case *SandboxExpireBody:
		m.expire(b)
	case *ConversationUpdateBody:
		return m.updateConversation(c.UserID, b)
	case *ConversationDeleteBody:
		return m.deleteConversation(c.UserID, b)
	default:
		return m.applyTask(c)
	}
	return ""
}

func (s *modelSandbox) wish(d Desired, now time.Time, pausedBy string) {
	s.Desired, s.DesiredAt, s.PausedBy = d, now, pausedBy
	s.Generation++
}

func (m *model) addMember(b *PoolAddBody) Code {
	i := slices.IndexFunc(m.specs, func(s Spec) bool { return s.ID == b.SpecID })
	if i < 0 {
		return CodeNotFound
	}
	spec := m.specs[i]
	if m.hasKey(b.KeyHash) {
		return CodeConflict
	}
	same := 0
	all, _ := m.use("")
	cpu, memory := spec.Template.CPU+all.CPU, spec.Template.Memory+all.Memory
	for _, s := range m.sandboxes {
		if s.ID == b.ID {
			return CodeConflict
		}
		if s.User == "" && s.Pool == b.SpecID && s.Desired != DesiredDeleted && s.CPU == spec.Template.CPU {
			same++
		}
	}
	over := m.installation.Overall
	switch {
	case same >= spec.Pool:
		return CodeConflict
	case over.CPU > 0 && cpu > over.CPU, over.Memory > 0 && memory > over.Memory:
		return CodeLimit
	}
	m.sandboxes = append(m.sandboxes, modelSandbox{
		ID: b.ID, Spec: spec.ID, Pool: spec.ID, Image: "agent:1", CPU: spec.Template.CPU, Memory: spec.Template.Memory,
		Init:    b.InitRef,
		WarmKey: b.KeyRef, WarmHash: b.KeyHash,
		Desired: DesiredRunning, DesiredAt: m.now, Generation: 1, State: SandboxStarting, Since: m.now,
		Policy: spec.Template.Policy,
	})
	return ""
}

// claim turns a new sandbox into the first member that can be claimed.
func (m *model) claim(user string, n *modelSandbox, promised *modelTask) Code {
	var found *modelSandbox
	for i := range m.sandboxes {
		s := &m.sandboxes[i]
		fits := s.User == "" && s.Pool == n.Spec && s.Desired == DesiredRunning && s.State == SandboxRunning &&
			s.Observed == s.Generation &&
			s.Image == n.Image && s.CPU == n.CPU && s.Memory == n.Memory && !m.hasKey(s.WarmHash)
		if fits && (found == nil || s.ID < found.ID) {
			found = s
		}
	}
	if found == nil {
		return CodePoolEmpty
	}
	*n = *found
	n.wish(DesiredRunning, m.now, "")
	n.User, n.Claimed, n.Key, n.Hash, n.Since = user, true, n.WarmKey, n.WarmHash, m.now
	n.WarmKey, n.WarmHash = SecretRef{}, ""
	m.claimed = n.ID
	return m.start(n, promised)
}

func (m *model) hasKey(hash string) bool {
	return slices.ContainsFunc(m.sandboxes, func(s modelSandbox) bool { return s.Hash == hash })
}

// resume sets a user's sandbox to run if the condition when holds. promised is as in start.
func (m *model) resume(user, id string, when func(*modelSandbox) bool, promised *modelTask) Code {
	s := m.sandbox(id)
	if s == nil || s.User != user || s.Desired == DesiredDeleted {
		return CodeNotFound
	}
	if !when(s) {
		return ""
	}
	n := *s
	n.wish(DesiredRunning, m.now, "")
	return m.start(&n, promised)
}

// use adds up what a user, or "" all users, have or have reserved. running lists the running
// sandboxes.
func (m *model) use(user string) (u Usage, running []*modelSandbox) {
	for i := range m.sandboxes {
		s := &m.sandboxes[i]
		if user != "" && s.User != user {
			continue
		}
		if s.Desired != DesiredDeleted && s.User != "" {
			u.Total++
		}
		if s.Desired != DesiredRunning {
			continue
		}
		u.CPU += s.CPU
		u.Memory += s.Memory
		if s.User != "" {
			u.Running++
			running = append(running, s)
		}
	}
	for _, t := range m.tasks {
		if t.Reservation != nil && (user == "" || t.User == user) {
			u = u.plus(Usage{Running: 1, Total: 1, CPU: t.Reservation.CPU, Memory: t.Reservation.Memory})
		}
	}
	return u, running
}

// limits returns the limits of a user.
func (m *model) limits(user string) Limits {
	if l := m.users[user].Limits; l != nil {
		return *l
	}
	return m.installation.PerUser
}

// start stores a sandbox, makes room, and then checks whether anything that grew exceeds its limit.
// With a task the sandbox is the task's reservation; a sandbox without an id is only reserved now.
func (m *model) start(n *modelSandbox, task *modelTask) Code {
	limits := m.limits(n.User)
	mine, _ := m.use(n.User)
	theirs, _ := m.use("")
	noted := task != nil && task.Reservation != nil
	if task != nil {
		task.Reservation = nil
	}
	if n.ID == "" {
		task.Reservation = n
	} else if s := m.sandbox(n.ID); s != nil {
		*s = *n
	} else {
		m.sandboxes = append(m.sandboxes, *n)
	}
	grown, running := m.use(n.User)
	all, _ := m.use("")
	wants, wantsAll := grown.minus(mine), all.minus(theirs)
	if m.installation.OnLimit == OnLimitPauseOldest && limits.Running > 0 && wants.Running > 0 {
		running = slices.DeleteFunc(running, func(s *modelSandbox) bool { return s.ID == n.ID })
		slices.SortFunc(running, func(a, b *modelSandbox) int {
			if c := a.DesiredAt.Compare(b.DesiredAt); c != 0 {
				return c
			}
			if a.ID < b.ID {
				return -1
			}
			return 1
		})
		for grown.Running > limits.Running && len(running) > 0 {
			running[0].wish(DesiredPaused, m.now, PausedByLimit)
			running = running[1:]
			grown, _ = m.use(n.User)
		}
		all, _ = m.use("")
	}
	over := func(u, more Usage, l Limits) bool {
		return more.Running > 0 && l.Running > 0 && u.Running > l.Running ||
			more.Total > 0 && l.Total > 0 && u.Total > l.Total ||
			more.CPU > 0 && l.CPU > 0 && u.CPU > l.CPU || more.Memory > 0 && l.Memory > 0 && u.Memory > l.Memory
	}
	overall := m.installation.Overall
	if over(grown, wants, limits) || over(all, wantsAll, overall) {
		return CodeLimit
	}
	if noted {
		return ""
	}
	if m.tooFast(n.User, limits.StartsPerMinute) || m.tooFast("", overall.StartsPerMinute) {
		return CodeLimit
	}
	m.noteStart(n.User, limits.StartsPerMinute)
	m.noteStart("", overall.StartsPerMinute)
	return ""
}

func (m *model) tooFast(user string, limit int) bool {
	n := 0
	for _, at := range m.starts[user] {
		if at.After(m.now.Add(-time.Minute)) {
			n++
		}
	}
	return limit > 0 && n >= limit
}

// noteStart keeps the latest starts that the limit counts.
func (m *model) noteStart(user string, limit int) {
	all := append(slices.Clone(m.starts[user]), m.now)
	slices.SortFunc(all, time.Time.Compare)
	m.starts[user] = all[len(all)-min(limit, len(all)):]
}

func (m *model) expire(b *SandboxExpireBody) {
	s := m.sandbox(b.ID)
	if s == nil || s.User == "" || s.Generation != b.Generation {
		return
	}
	if (b.Reason == PausedByIdle || !b.NotActiveSince.IsZero()) && s.LastUse.After(b.NotActiveSince) {
		return
	}
	switch {
	case b.Action == ExpirePause && s.Desired == DesiredRunning:
		s.wish(DesiredPaused, m.now, b.Reason)
	case b.Action == ExpireDelete && s.Desired == DesiredPaused:
		s.wish(DesiredDeleted, m.now, "")
	}
}

// expiry returns the expected result of View.Expiry.
func (m *model) expiry(s *modelSandbox) string {
	set := func(d time.Duration, over *time.Duration) {
		if d != 0 {
			*over = d
		}
	}
	p := m.installation.Policy
	layers := []Policy{s.Policy}
	if u := m.users[s.User]; u.Policy != nil {
		layers = append(layers, *u.Policy)
	}
	for _, l := range layers {
		set(l.IdleTimeout, &p.IdleTimeout)
		set(l.MaxRunning, &p.MaxRunning)
		set(l.DeletePausedAfter, &p.DeletePausedAfter)
	}
	since := s.Since
	if s.DesiredAt.After(since) {
		since = s.DesiredAt
	}
	used := since
	if s.LastUse.After(used) {
		used = s.LastUse
	}
	idle, old := used.Add(p.IdleTimeout), since.Add(p.MaxRunning)
	running := s.Desired == DesiredRunning && s.State == SandboxRunning
	switch {
	case s.User == "" || s.Observed != s.Generation:
	case running && p.IdleTimeout > 0 && (p.MaxRunning <= 0 || !old.Before(idle)):
		return words(s.ID, idle, ExpirePause, PausedByIdle)
	case running && p.MaxRunning > 0:
		return words(s.ID, old, ExpirePause, PausedByMaxRunning)
	case s.Desired == DesiredPaused && s.State == SandboxPaused && p.DeletePausedAfter > 0:
		return words(s.ID, since.Add(p.DeletePausedAfter), ExpireDelete, ReasonPausedTooLong)
	}
	return s.ID
}

// expiryOf returns the actual result of View.Expiry.
func expiryOf(v *View, s *Sandbox) string {
	at, action, reason, ok := v.Expiry(s)
	if !ok {
		return s.ID
	}
	return words(s.ID, at, action, reason)
}

func (m *model) updateConversation(user string, b *ConversationUpdateBody) Code {
	for i := range m.conversations {
		c := &m.conversations[i]
		if c.User != user || c.ID != b.ID {
			continue
		}
		for _, name := range b.Set {
			switch name {
			case "title":
				c.Title = b.Title
			case "selected_repository":
				c.Repository = b.SelectedRepository
			case "selected_branch":
				c.Branch = b.SelectedBranch
			default:
				panic(fmt.Sprint("the model does not know ", name))
			}
		}
		return ""
	}
	return CodeNotFound
}

func (m *model) deleteConversation(user string, b *ConversationDeleteBody) Code {
	i := slices.IndexFunc(m.conversations, func(c modelConversation) bool { return c.User == user && c.ID == b.ID })
	if i < 0 {
		return CodeNotFound
	}
	sandbox := m.conversations[i].Sandbox
	gone := map[string]bool{b.ID: true}
	for range m.conversations {
		for _, c := range m.conversations {
			gone[c.ID] = gone[c.ID] || c.User == user && c.Parent != "" && gone[c.Parent]
		}
	}
	m.conversations = slices.DeleteFunc(m.conversations, func(c modelConversation) bool {
		return c.User == user &&
			gone[c.ID]
	})
	m.tasks = slices.DeleteFunc(m.tasks, func(t modelTask) bool {
		return t.User == user && gone[t.Conversation] && (t.Status == StartTaskReady || t.Status == StartTaskError)
	})
	needed := slices.ContainsFunc(m.conversations, func(c modelConversation) bool { return c.Sandbox == sandbox }) ||
		slices.ContainsFunc(m.tasks, func(t modelTask) bool {
			return t.Sandbox == sandbox && t.Status != StartTaskReady && t.Status != StartTaskError
		})
	if s := m.sandbox(sandbox); b.DeleteSandbox && !needed && s != nil && s.User == user && s.Desired != DesiredDeleted {
		s.wish(DesiredDeleted, m.now, "")
	}
	return ""
}
