package conversation

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	// mostRestarts is how often a run goes on by itself after a restart without a new result. What the
	// agent does may be what ends the server.
	mostRestarts = 2
	// keyRestarts is the state that counts them.
	keyRestarts = "server_restarts"
	// tailBlock is how much of a file of events is read first, from its end.
	tailBlock = 64 << 10

	restartText = "A restart occurred while this tool was in progress. It may have had an effect: " +
		"look before you repeat it."
)

// What a conversation does after the server's next start (Meta.AfterRestart).
const (
	// afterRestartRun is set by a pause that ends with that start, such as a drain's.
	afterRestartRun = "run"
	// afterRestartStay is set by a pause of a person, whose run may be killed before it takes effect.
	afterRestartStay = "stay"
)

// restarted deals with what the server's last process left: a run that it did not end, or that it
// paused until the next start. Open actions get an error; then the run goes on by itself, or its end
// is told. The caller holds c.mu and has just loaded the events.
func (c *Conversation) restarted() error {
	former, status := c.former, c.log.status()
	c.former = false
	if former {
		_ = c.conclude(c.interruptedGoal()...) // on a full disk it counts, and is stored with the next events
	}
	drained := former && status == engine.StatusPaused && c.meta.AfterRestart == afterRestartRun
	if c.goesOn || status != engine.StatusRunning && !drained {
		return nil
	}
	events, err := c.history()
	if err != nil {
		return err
	}
	list := unfinished(event.OpenActions(events), restartText)
	list = append(list, event.Failed(event.OpenCalls(events), nil)...)
	n := restarts(events)
	switch {
	case c.meta.AfterRestart == afterRestartStay:
		list = append(list, &event.Pause{Head: event.Head{Source: event.SourceUser}}, statusEvent(engine.StatusPaused))
	case former && c.resumes && n < mostRestarts:
		c.goesOn = true
		list = append(list, engine.Update(keyRestarts, n+1))
		if drained {
			list = append(list, statusEvent(engine.StatusRunning))
		}
	case drained: // it stays paused
	default:
		detail := "The sandbox stopped while the agent worked. Send a message or start a run to go on."
		if n == mostRestarts {
			detail = "The sandbox stopped several times while the agent did the same. What it does may be the " +
				"reason. Send a message or start a run to go on."
		}
		list = append(list, failureEvents(&engine.Failure{Code: "ServerRestarted", Detail: detail})...)
	}
	return c.conclude(list...)
}

// restarts counts the restarts after which a run went on by itself, since the last new result: one
// of a tool, or an answer. What a person does begins anew.
func restarts(events []event.Event) int {
	n := 0
	for i := len(events) - 1; i >= 0; i-- {
		switch e := events[i].(type) {
		case *event.StateUpdate:
			if e.Key == keyRestarts {
				n++
			}
		case *event.AgentError:
			if e.Error != restartText && e.Error != interrupted {
				return n
			}
		case *event.ACPToolCall:
			if e.Status != nil && *e.Status == "completed" {
				return n
			}
		case *event.Message, *event.Observation, *event.UserReject, *event.Condensation, *event.ConversationError:
			return n
		}
	}
	return n
}

// setAfterRestart stores what the conversation does after the server's next start. The caller holds
// c.mu.
func (c *Conversation) setAfterRestart(what string) error {
	if c.meta.AfterRestart == what {
		return nil
	}
	m := c.meta
	m.AfterRestart = what
	if err := writeMeta(c.dir, m); err != nil {
		return err
	}
	c.meta = m
	return nil
}

// goOn starts the runs that the last process did not end. A run that a client starts meanwhile is
// that run.
func (s *Service) goOn() {
	for _, c := range s.store.all() {
		if s.ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		drained, dir := c.meta.AfterRestart == afterRestartRun, c.dir
		c.mu.Unlock()
		if !drained && !unended(filepath.Join(dir, eventsFile)) {
			continue
		}
		if err := s.goOnWith(c); err != nil && !IsGone(err) {
			s.logger.Error("a run that a restart broke off does not go on", "conversation", c.Id, "error", err)
		}
	}
}

func (s *Service) goOnWith(c *Conversation) error {
	c.control.Lock()
	defer c.control.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.events(); err != nil || !c.goesOn || c.run != nil {
		return err
	}
	s.logger.Info("a run that a restart broke off goes on", "conversation", c.Id)
	return s.launch(c)
}

// unended reports whether the last status in a file of events is running. It reads the file's end
// alone: what follows the status of a run that ended is short.
func unended(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false // who opens the conversation is told
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false
	}
	for n := min(size, tailBlock); ; n = min(size, n*4) {
		tail := make([]byte, n)
		if _, err := f.ReadAt(tail, size-n); err != nil {
			return false
		}
		if status, found := lastStatus(tail); found || n == size {
			return status == engine.StatusRunning
		}
	}
}

// lastStatus finds the last status update whose whole line is in the end of a file of events.
func lastStatus(tail []byte) (status string, found bool) {
	tail = tail[:bytes.LastIndexByte(tail, '\n')+1]
	for {
		at := bytes.LastIndex(tail, []byte(`"key":"`+engine.KeyStatus+`"`))
		begin := bytes.LastIndexByte(tail[:max(at, 0)], '\n') + 1
		if at < 0 || begin == 0 && tail[0] != '{' {
			return "", false
		}
		line, _, _ := bytes.Cut(tail[begin:], []byte("\n"))
		var h eventHead
		if json.Unmarshal(line, &h) == nil && h.Kind == event.KindStateUpdate && h.Key == engine.KeyStatus {
			return status, json.Unmarshal(h.Value, &status) == nil
		}
		tail = tail[:begin]
	}
}
