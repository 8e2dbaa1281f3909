package conversation

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	// AutoTitle is the length of a title that no model made.
	AutoTitle = 50
	// titleTime is how long a model may take for a title.
	titleTime = 30 * time.Second
)

// TitleOf returns the start of the first text, as upstream does when no model makes a title.
func TitleOf(m agent.Message) *string {
	for _, b := range m.Content {
		if t := shortTitle(b.Text); t != nil {
			return t
		}
	}
	return nil
}

// shortTitle returns the start of a text on one line, nil for a blank one.
func shortTitle(text string) *string {
	t := strings.Join(strings.Fields(text), " ")
	if t == "" {
		return nil
	}
	if utf8.RuneCountInString(t) > AutoTitle {
		t = string([]rune(t)[:AutoTitle])
	}
	return &t
}

// entitle lets the model make the title, if the conversation has none of its own.
func (s *Service) entitle(c *Conversation) {
	c.mu.Lock()
	text := ""
	if c.log != nil && c.log.first >= 0 && c.meta.Autotitle {
		text = c.firstText()
	}
	title, eng := c.meta.Title, c.engine
	c.mu.Unlock()
	if text == "" {
		return
	}
	if title == nil {
		title = shortTitle(text)
		if err := c.change(func(m *Meta) { m.Title = title }); err != nil {
			return // the next message tries again
		}
	}
	t, ok := eng.(engine.Titler)
	if !ok || title == nil {
		s.tell(c)
		return
	}
	s.background.Go(func() {
		defer s.tell(c)
		ctx, cancel := context.WithTimeout(s.ctx, titleTime)
		defer cancel()
		better, err := t.Title(ctx, text)
		if err != nil || better == "" {
			return // the short title stays
		}
		_ = c.change(func(m *Meta) { // fails only when the conversation is gone or the disk full
			if m.Autotitle && m.Title != nil && *m.Title == *title {
				m.Title = &better
			}
			m.Autotitle = false
		})
	})
}

// firstText is the text of the user's first message. The caller holds c.mu and has loaded the
// events.
func (c *Conversation) firstText() string {
	b, err := c.log.body(c.log.entries[c.log.first])
	if err != nil {
		return ""
	}
	e, err := event.Decode(b)
	m, ok := e.(*event.Message)
	if err != nil || !ok {
		return ""
	}
	return m.LLMMessage.Text()
}

// SuggestTitle returns a title for the conversation, the model's where its engine makes titles. It is
// empty without a message of the user.
func (s *Service) SuggestTitle(ctx context.Context, c *Conversation) (string, error) {
	c.mu.Lock()
	l, err := c.events()
	text := ""
	if err == nil && l.first >= 0 {
		text = c.firstText()
	}
	c.mu.Unlock()
	short := shortTitle(text)
	if err != nil || short == nil {
		return "", err
	}
	eng, err := s.EngineOf(c)
	if err != nil {
		return *short, nil
	}
	if t, ok := eng.(engine.Titler); ok {
		ctx, cancel := context.WithTimeout(ctx, titleTime)
		defer cancel()
		if better, err := t.Title(ctx, text); err == nil && better != "" {
			return better, nil
		}
	}
	return *short, nil
}
