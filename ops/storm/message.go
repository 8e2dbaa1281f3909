package storm

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"bivouac.dev/bivouac/ops/fleet"
)

// talk is the conversation that an actor has in a sandbox.
type talk struct {
	// conversation is its id, "" before the first message.
	conversation string
	sent         []*message
}

// message is one that was acknowledged.
type message struct {
	text string
	// most is how often it may have been delivered: once for each request that
	// may have been carried out, the one that was acknowledged being the last.
	most int
	// heard is how often it was found there.
	heard int
}

// say sends a message with an Idempotency-Key until it is acknowledged, once
// more after that, and then listens: it must be there, and nothing that was
// asked for after the acknowledgement may have added to it.
func (a *actor) say(b *box) error {
	if err := a.settled(b); err != nil {
		return err
	}
	if b.conversation == "" {
		if err := a.converse(b); err != nil {
			return err
		}
	}
	key := a.newKey()
	m := &message{text: fmt.Sprintf("%s says %d.", a.name, a.made)}
	if err := a.send("message", b, m, key); err != nil {
		return err
	}
	b.sent, a.sent = append(b.sent, m), append(a.sent, m)
	repeated := *m
	if err := a.send("repeated message", b, &repeated, key); err != nil {
		return err
	}
	return a.hear(b)
}

// send sends the message until it is acknowledged, and counts how often it may
// have been delivered by that.
func (a *actor) send(what string, b *box, m *message, key string) error {
	body := map[string]any{"content": []any{map[string]string{"type": "text", "text": m.text}}, "run": false}
	path := "/api/v1/app-conversations/" + b.conversation + "/send-message"
	return a.until(what, func(c fleet.Client) (bool, error) {
		c.HTTP = a.plain
		answer, err := c.Try(http.MethodPost, path, body, "Idempotency-Key", key)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			return false, err
		case err != nil:
			m.most++
			return false, err
		case answer.Status/100 == 2:
			m.most++
			return true, nil
		case refused(answer) || strings.Contains(string(answer.Body), "to resume it first"):
			return true, a.tally.violation("%s: a message to sandbox %s (%s) was refused: %s", a.name, b.id, b.want, answer)
		case nothingDone(answer):
			if strings.Contains(string(answer.Body), "is ERROR") { // its sandbox failed in the storm
				_, err = c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/resume", nil)
			}
		case answer.Status != http.StatusTooManyRequests:
			m.most++
		}
		return false, errors.Join(errors.New(answer.String()), err)
	})
}

// nothingDone tells a 503 that promises that the request was not carried out.
func nothingDone(a fleet.Answer) bool {
	return a.Status == http.StatusServiceUnavailable && !strings.Contains(string(a.Body), "outcome of this request is unknown")
}

// converse starts a conversation in the sandbox.
func (a *actor) converse(b *box) error {
	var task fleet.StartTask
	key := ""
	return a.until("converse", func(c fleet.Client) (bool, error) {
		if task.ID == "" {
			if key == "" {
				key = a.newKey()
			}
			answer, err := c.Try(http.MethodPost, "/api/v1/app-conversations", map[string]string{"sandbox_id": b.id}, "Idempotency-Key", key)
			if err == nil {
				err = answer.Decode(&task)
			}
			if err != nil {
				return false, err
			}
		}
		answer, err := c.Try(http.MethodGet, "/api/v1/app-conversations/start-tasks?ids="+task.ID, nil)
		var list []*fleet.StartTask
		if err == nil {
			err = answer.Decode(&list)
		}
		switch {
		case err != nil:
			return false, err
		case len(list) != 1 || list[0] == nil:
			return true, a.tally.violation("%s: the start task %s is lost", a.name, task.ID)
		case list[0].Status == "READY" && list[0].ConversationID != nil:
			b.conversation = *list[0].ConversationID
			return true, nil
		case list[0].Status == "ERROR": // its sandbox failed in the storm: once more
			task, key = fleet.StartTask{}, ""
			resumed, err := c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/resume", nil)
			return false, errors.Join(err, fmt.Errorf("the start ended in ERROR: %s; resumed: %s", answer, resumed))
		}
		return false, fmt.Errorf("it is %s", list[0].Status)
	})
}

// hear reads all messages in the sandbox's conversation: each that was
// acknowledged is there, and not more often than it can have been delivered.
func (a *actor) hear(b *box) error {
	if len(b.sent) == 0 {
		return nil
	}
	return a.until("hear", func(c fleet.Client) (bool, error) {
		sb, err := c.Sandbox(b.id)
		if err == nil && sb.Status != "RUNNING" {
			err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
		}
		if err != nil {
			return false, err
		}
		texts, err := messagesOf(sb.Inside(), b.conversation)
		if err != nil {
			return false, err
		}
		for _, m := range b.sent {
			m.heard = texts[m.text]
			switch {
			case m.heard == 0:
				return true, a.tally.violation("%s: the message %q in sandbox %s was acknowledged and is lost", a.name, m.text, b.id)
			case m.heard > m.most:
				return true, a.tally.violation("%s: the message %q in sandbox %s was delivered %d times, at most %d can be", a.name, m.text, b.id, m.heard, m.most)
			}
		}
		return true, nil
	})
}

// messagesOf counts the messages of a conversation, by their text.
func messagesOf(inside fleet.Client, conversation string) (map[string]int, error) {
	texts, token := map[string]int{}, ""
	for {
		a, err := inside.Try(http.MethodGet, "/api/conversations/"+conversation+"/events/search?kind=MessageEvent&limit=100&page_id="+url.QueryEscape(token), nil)
		var page struct {
			Items []struct {
				Message struct {
					Content []struct{ Text string }
				} `json:"llm_message"`
			}
			Next *string `json:"next_page_id"`
		}
		if err == nil {
			err = a.Decode(&page)
		}
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			for _, block := range item.Message.Content {
				texts[block.Text]++
			}
		}
		if page.Next == nil || *page.Next == "" {
			return texts, nil
		}
		token = *page.Next
	}
}
