package httpapi

import (
	"archive/zip"
	"bytes"
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

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/eventseal"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/response"
)

// Limits of the download of a conversation.
const (
	maxDownload   = 10_000  // events
	downloadPage  = 50      // events in one call
	downloadBytes = 1 << 20 // stored events in memory at once, beside the last one
	downloadTime  = 10 * time.Minute
)

// download is a conversation's events on their way into an archive.
type download struct {
	row  *fsm.Conversation
	meta []byte
	// each calls add with the events in their order.
	each func(ctx context.Context, add func(event json.RawMessage) error) error
}

// handleDownload handles GET …/{conversation_id}/download: a zip with meta.json and a file for each
// event. A conversation has one download at a time on a node.
func (s *Server) handleDownload(c *call) (response.Response, error) {
	a, err := c.agentOfPath()
	if err != nil {
		return response.Response{}, err
	}
	shown := newConversationBody(a.row, a.sandbox, sandboxKeys{}, s.linksFor(c.Request))
	shown.SessionAPIKey, shown.ConversationURL = nil, nil
	d := &download{row: a.row}
	if d.meta, err = json.MarshalIndent(shown, "", " "); err != nil {
		return response.Response{}, fmt.Errorf("encoding a conversation: %w", err)
	}
	if a.row.Events != nil {
		return s.storedDownload(c, d)
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
		return response.Response{}, errDownload(uint64(n))
	}
	session, err := s.proxy.OpenLog(c.Request.Context(), a.sandbox.ID, false)
	if err != nil {
		return response.Response{}, err
	}
	d.each = a.eachEvent
	out, err := s.stream(session.Context(), d, session.End)
	if err != nil {
		session.End()
	}
	return out, err
}

// errDownload refuses a download of too many events.
func errDownload(n uint64) error {
	return response.Error(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("The conversation has %d events, a download at most %d.", n, maxDownload))
}

// storedDownload is the download of the cluster's own events.
func (s *Server) storedDownload(c *call, d *download) (response.Response, error) {
	if n := d.row.Events.Number; n > maxDownload {
		return response.Response{}, errDownload(n)
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	u := v.User(d.row.UserID)
	if u == nil {
		return response.Response{}, response.NotFound()
	}
	key, err := c.openKey(u.EventKey)
	if err != nil {
		return response.Response{}, err
	}
	d.each = func(ctx context.Context, add func(json.RawMessage) error) error {
		return s.eachStored(ctx, d.row, key, add)
	}
	return s.stream(c.Request.Context(), d, func() {})
}

// eachStored calls add with all stored events of a conversation. It has a part of them in memory, and
// holds nothing of the store while add waits for a client.
func (s *Server) eachStored(
	ctx context.Context, row *fsm.Conversation, key eventseal.Key, add func(json.RawMessage) error,
) error {
	for next := uint64(0); next < row.Events.Number; {
		var part [][]byte
		size := 0
		err := s.cfg.Events.ReadEvents(ctx, *row.Events, cluster.EventQuery{From: next}, func(_ uint64, stored []byte) bool {
			part, size = append(part, bytes.Clone(stored)), size+len(stored)
			return size < downloadBytes
		})
		if err != nil {
			return err
		}
		for _, stored := range part {
			_, text, err := key.Open(row.ID, stored)
			if err == nil {
				err = add(text)
			}
			if err != nil {
				return err
			}
		}
		next += uint64(len(part))
	}
	return nil
}

// stream answers with the archive. end is called when it has ended.
func (s *Server) stream(ctx context.Context, d *download, end func()) (response.Response, error) {
	name := d.row.UserID + "/" + d.row.ID
	if _, running := s.downloads.LoadOrStore(name, true); running {
		return response.Response{}, response.Error(http.StatusConflict,
			"A download of this conversation is running: wait for its end.")
	}
	return response.Response{Status: http.StatusOK, Stream: func(w http.ResponseWriter) error {
		defer end()
		defer s.downloads.Delete(name)
		ctx, cancel := context.WithTimeout(ctx, downloadTime)
		defer cancel()
		if err := d.write(ctx, w); err != nil {
			s.log.Info("a download broke off", "conversation", d.row.ID, "error", err)
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
		"filename": "conversation_" + decode.Dashed(d.row.ID) + ".zip",
	}))
	archive := zip.NewWriter(w)
	if err := addToArchive(archive, w, "meta.json", d.meta); err != nil {
		return err
	}
	n := 0
	err := d.each(ctx, func(event json.RawMessage) error {
		var of struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(event, &of) // an event without an id is numbered
		name := fmt.Sprintf("event_%06d_%s.json", n, decode.Truncate(eventName.ReplaceAllString(of.ID, ""), 64))
		n++
		return addToArchive(archive, w, name, event)
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// eachEvent calls add with all events that the agent server has.
func (a *conversationAgent) eachEvent(ctx context.Context, add func(json.RawMessage) error) error {
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
		err := a.call(ctx, AgentRequest{Method: http.MethodGet, Path: a.events("/search", q)}, &found)
		var failed *AgentError
		if errors.As(err, &failed) && failed.Status == http.StatusOK && limit > 1 {
			limit = 1 // the page was too large
			continue
		}
		if err != nil {
			return err
		}
		for _, event := range found.Items {
			if err := add(event); err != nil {
				return err
			}
			n++
		}
		if next = decode.OrZero(found.Next); next == "" || len(found.Items) == 0 {
			return nil
		}
	}
	return nil
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
