package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/wire"
)

// eventsPause is how long --follow waits for more events.
const eventsPause = time.Second

// eventsPath is where the cluster has the events of a conversation.
func eventsPath(id string) string { return "/api/v1/conversation/" + url.PathEscape(id) + "/events" }

func (p *program) conversationsEventsCommand() *cobra.Command {
	var api apiFlags
	var follow bool
	cmd := &cobra.Command{
		Use:   "events CONVERSATION",
		Short: "Show the stored events of your conversation, also without its sandbox",
		Long: `Show the stored events of your conversation: when, who, which tool, and what came of it.
Its sandbox may be paused or gone; it is not asked, and not woken. With --json each line is an event
as the agent server sent it.`,
		Example: `  bivouac conversations events 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01
  bivouac conversations events --follow 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01
  bivouac conversations events --json 6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeConversation(&api),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := p.ownConversation(cmd, &api, args[0])
			if err != nil {
				return err
			}
			stored := storedEvents{p: p, conversation: one.ID, asJSON: api.asJSON,
				get: func(path string, out any) error { return p.waiting(cmd, c, http.MethodGet, path, nil, out) }}
			for {
				if err := stored.show(); err != nil || !follow {
					return err
				}
				select {
				case <-time.After(eventsPause):
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				}
			}
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with new events until interrupted")
	return cmd
}

// storedEvents prints the stored events of a conversation.
type storedEvents struct {
	p            *program
	conversation string
	asJSON       bool
	get          func(path string, out any) error
	// at is how many were shown, which is the token of the page that follows.
	at    int
	shown transcript
}

// show prints those that were not shown.
func (s *storedEvents) show() error {
	number := 0
	if err := s.get(eventsPath(s.conversation)+"/count", &number); err != nil {
		return err
	}
	for s.at < number {
		var page wire.Page[json.RawMessage]
		q := url.Values{"page_id": {strconv.Itoa(s.at)}}
		if err := s.get(eventsPath(s.conversation)+"/search?"+q.Encode(), &page); err != nil {
			return err
		}
		if len(page.Items) == 0 {
			return nil
		}
		for _, raw := range page.Items {
			if err := s.print(raw); err != nil {
				return err
			}
		}
		s.at += len(page.Items)
	}
	return nil
}

// print prints one event.
func (s *storedEvents) print(raw json.RawMessage) error {
	if s.asJSON {
		line, err := printableJSON(raw)
		if err != nil {
			return fmt.Errorf("an event of the conversation: %w", err)
		}
		_, err = s.p.stdout.Write(append(line, '\n'))
		return err
	}
	e, err := event.Decode(raw)
	if err != nil { // a sandbox sends what it likes, and hides no other event with it
		unknown := &event.Unknown{Raw: raw}
		_ = json.Unmarshal(raw, &unknown.Head) // members of another type say nothing
		e = unknown
	}
	_, err = fmt.Fprintln(s.p.stdout, printableText(readableEvent(&s.shown, e)))
	return err
}

// readableEvent is an event for people: when, who, which tool or kind, and below it what.
func readableEvent(shown *transcript, e event.Event) string {
	h := e.Envelope()
	what, text := h.Kind, shown.text(e)
	switch e := e.(type) {
	case *event.Message:
		what, text = "message", e.LLMMessage.Text()
	case *event.Action:
		what = "calls " + e.ToolName
		if e.ToolName == "finish" {
			var finish struct {
				Message string `json:"message"`
			}
			_ = json.Unmarshal(e.Action, &finish) // another form says nothing
			text = cmp.Or(finish.Message, text)
		}
	case *event.Observation:
		what = "result of " + e.ToolName
	case *event.AgentError:
		what = "error of " + e.ToolName
	case *event.UserReject:
		what = "rejects " + e.ToolName
	case *event.StateUpdate:
		what = "state " + e.Key
		if e.Key == "execution_status" {
			text = strings.Trim(string(e.Value), `"`)
		}
	}
	line := strings.TrimSpace(fmt.Sprintf("%s  %s  %s", h.Timestamp, h.Source, what))
	if text = strings.TrimRight(text, "\n"); text != "" {
		line += "\n    " + strings.ReplaceAll(text, "\n", "\n    ")
	}
	return line
}
