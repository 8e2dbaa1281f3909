package workload

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// chat is an actor's conversation in a sandbox.
type chat struct {
	// conversation is its id, "" before the first message.
	conversation string
	sent         []*message
}

// message is an acknowledged message.
type message struct {
	text string
	// most is how often it may have been delivered: once per request that may have taken
	// effect, up to the acknowledged one.
	most int
	// heard is how often it was found.
	heard int
}

// say sends a message with an Idempotency-Key until it is acknowledged, and once more after
// that. Then it reads the conversation: the message is there, and the request after the
// acknowledgement added nothing.
func (a *actor) say(b *owned) error {
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

// send sends the message until it is acknowledged, and counts how often it may have been
// delivered.
func (a *actor) send(what string, b *owned, m *message, key string) error {
	body := map[string]any{"content": []any{map[string]string{"type": "text", "text": m.text}}, "run": false}
	path := "/api/v1/app-conversations/" + b.conversation + "/send-message"
	return a.until(what, func(c testcluster.Client) (bool, error) {
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
			return true, a.violation("%s: a message to sandbox %s (%s) was refused: %s", a.name, b.id, b.want, answer)
		case nothingDone(answer):
			if strings.Contains(string(answer.Body), "is ERROR") { // its sandbox failed
				_, err = c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/resume", nil)
			}
		case answer.Status != http.StatusTooManyRequests:
			m.most++
		}
		return false, errors.Join(errors.New(answer.String()), err)
	})
}

// nothingDone reports whether a 503 promises that the request had no effect.
func nothingDone(a testcluster.Answer) bool {
	return a.Status == http.StatusServiceUnavailable && !strings.Contains(string(a.Body),
		"outcome of this request is unknown")
}

// converse starts a conversation in the sandbox.
func (a *actor) converse(b *owned) error {
	var task testcluster.StartTask
	key := ""
	return a.until("converse", func(c testcluster.Client) (bool, error) {
		if task.ID == "" {
			if key == "" {
				key = a.newKey()
			}
			if err := c.Do(http.MethodPost, conversationsPath, map[string]string{"sandbox_id": b.id}, &task, "Idempotency-Key",
				key); err != nil {
				return false, err
			}
		}
		now, err := c.Task(task.ID)
		switch {
		case errors.Is(err, testcluster.ErrGone):
			return true, a.violation("%s: the start task %s is lost", a.name, task.ID)
		case err != nil:
			return false, err
		case now.Status == "READY" && now.ConversationID != nil:
			b.conversation = *now.ConversationID
			return true, nil
		case now.Status == "ERROR": // its sandbox failed: try again
			task, key = testcluster.StartTask{}, ""
			resumed, err := c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/resume", nil)
			return false, errors.Join(err, fmt.Errorf("the start ended in ERROR: %s; resumed: %s", now.Text(), resumed))
		}
		return false, fmt.Errorf("it is %s", now.Status)
	})
}

// hear reads all messages of the sandbox's conversation. Each acknowledged one is there, and
// not more often than it may have been delivered.
func (a *actor) hear(b *owned) error {
	if len(b.sent) == 0 {
		return nil
	}
	return a.until("hear", func(c testcluster.Client) (bool, error) {
		sb, err := c.SandboxIn(b.id, "RUNNING")
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
				return true, a.violation("%s: the message %q in sandbox %s was acknowledged and is lost", a.name, m.text, b.id)
			case m.heard > m.most:
				return true, a.violation("%s: the message %q in sandbox %s was delivered %d times, at most %d can be", a.name,
					m.text, b.id, m.heard, m.most)
			}
		}
		return true, nil
	})
}

// messagesOf counts the messages of a conversation by their text.
func messagesOf(inside testcluster.Client, conversation string) (map[string]int, error) {
	texts, token := map[string]int{}, ""
	for {
		var page struct {
			Items []struct {
				Message struct {
					Content []struct{ Text string }
				} `json:"llm_message"`
			}
			Next *string `json:"next_page_id"`
		}
		err := inside.Get(
			"/api/conversations/"+conversation+"/events/search?kind=MessageEvent&limit=100&page_id="+url.QueryEscape(token),
			&page,
		)
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
