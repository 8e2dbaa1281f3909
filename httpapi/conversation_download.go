package httpapi

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/response"
)

// Limits of the download of a conversation.
const (
	maxDownload  = 10_000 // events
	downloadPage = 50     // events in one call
	downloadTime = 10 * time.Minute
)

// download is a conversation's events on their way into an archive.
type download struct {
	agent *conversationAgent
	meta  []byte
}

// handleDownload handles GET …/{conversation_id}/download: a zip with meta.json and a file for each
// event. A conversation has one download at a time on a node.
func (s *Server) handleDownload(c *call) (response.Response, error) {
	a, err := c.agentOfPath()
	if err != nil {
		return response.Response{}, err
	}
	if !a.serves() {
		return response.Response{}, response.Error(http.StatusServiceUnavailable,
			fmt.Sprintf("Sandbox is %s; its events can't be read now.", a.state()))
	}
	var n int
	if err := a.call(c.Ctx(), AgentRequest{Method: http.MethodGet, Path: a.events("/count", nil)}, &n); err != nil {
		return response.Response{}, errOfAgent(err)
	}
	if n > maxDownload {
		return response.Response{}, response.Error(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("The conversation has %d events, a download at most %d.", n, maxDownload))
	}
	shown := newConversationBody(a.row, a.sandbox, sandboxKeys{}, s.linksFor(c.Request))
	shown.SessionAPIKey, shown.ConversationURL = nil, nil
	d := download{agent: a}
	if d.meta, err = json.MarshalIndent(shown, "", " "); err != nil {
		return response.Response{}, fmt.Errorf("encoding a conversation: %w", err)
	}
	session, err := s.proxy.OpenLog(c.Request.Context(), a.sandbox.ID, false)
	if err != nil {
		return response.Response{}, err
	}
	if _, running := s.downloads.LoadOrStore(a.row.UserID+"/"+a.row.ID, true); running {
		session.End()
		return response.Response{}, response.Error(http.StatusConflict,
			"A download of this conversation is running: wait for its end.")
	}
	return response.Response{Status: http.StatusOK, Stream: func(w http.ResponseWriter) error {
		defer session.End()
		defer s.downloads.Delete(a.row.UserID + "/" + a.row.ID)
		ctx, cancel := context.WithTimeout(session.Context(), downloadTime)
		defer cancel()
		if err := d.write(ctx, w); err != nil {
			s.log.Info("a download broke off", "conversation", a.row.ID, "error", err)
			panic(http.ErrAbortHandler) // so that the client sees that it is not whole
		}
		return nil
	}}, nil
}

// events is the path of a call for the conversation's events.
func (a *conversationAgent) events(at string, q url.Values) string {
	p := "/api/conversations/" + decode.Dashed(a.row.ID) + "/events" + at
	if len(q) > 0 {
		p += "?" + q.Encode()
	}
	return p
}

// eventName is what of an event's id may be in a file's name.
var eventName = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// write sends the archive. A client that does not read for limits.ChunkTime ends it.
func (d *download) write(ctx context.Context, w http.ResponseWriter) error {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a writer without deadlines has none to clear
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{
		"filename": "conversation_" + decode.Dashed(d.agent.row.ID) + ".zip",
	}))
	archive := zip.NewWriter(w)
	if err := addToArchive(archive, w, "meta.json", d.meta); err != nil {
		return err
	}
	limit, next := downloadPage, ""
	for n := 0; n < maxDownload; {
		q := url.Values{"limit": {strconv.Itoa(limit)}}
		if next != "" {
			q.Set("page_id", next)
		}
		var found struct {
			Items []json.RawMessage `json:"items"`
			Next  *string           `json:"next_page_id"`
		}
		err := d.agent.call(ctx, AgentRequest{Method: http.MethodGet, Path: d.agent.events("/search", q)}, &found)
		var failed *AgentError
		if errors.As(err, &failed) && failed.Status == http.StatusOK && limit > 1 {
			limit = 1 // the page was too large
			continue
		}
		if err != nil {
			return err
		}
		for _, event := range found.Items {
			var of struct {
				ID string `json:"id"`
			}
			_ = json.Unmarshal(event, &of) // an event without an id is numbered
			name := fmt.Sprintf("event_%06d_%s.json", n, decode.Truncate(eventName.ReplaceAllString(of.ID, ""), 64))
			if err := addToArchive(archive, w, name, event); err != nil {
				return err
			}
			n++
		}
		if next = decode.OrZero(found.Next); next == "" || len(found.Items) == 0 {
			break
		}
	}
	return archive.Close()
}

// addToArchive adds one file.
func addToArchive(to *zip.Writer, w http.ResponseWriter, name string, text []byte) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limits.ChunkTime)) // likewise
	file, err := to.Create(name)
	if err == nil {
		_, err = file.Write(text)
	}
	return err
}
