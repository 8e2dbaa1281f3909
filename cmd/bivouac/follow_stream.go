package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/coder/websocket"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

const (
	// socketTime bounds a handshake; a proxy waits 30 s for a sandbox that starts.
	socketTime = 40 * time.Second
	// pingPause and pingTime find a node that is gone without a word.
	pingPause = 10 * time.Second
	pingTime  = 10 * time.Second
	// maxFrame bounds an event, in bytes.
	maxFrame = 16 << 20
)

// The close codes of an events' socket (PROTOCOL.md, "Close codes").
const (
	closedUnauthorized websocket.StatusCode = 4001
	closedUnknown      websocket.StatusCode = 4004
	closedPaused       websocket.StatusCode = 4409
)

// mark is a stored event: its id and its time. The zero mark is the beginning.
type mark struct{ id, at string }

// arrival is an event, or none: only whether the stream is current then. err ends the stream.
type arrival struct {
	raw   json.RawMessage
	event event.Event
	// current: all that was stored when the socket was opened has arrived.
	current bool
	socket  int64 // its number
	err     error
}

// stream reads a conversation's events over one socket after the other, each once and in order.
type stream struct {
	f     *runFollower
	from  mark // shown are this event and those after it
	out   chan<- arrival
	notes chan string
	seen  map[string]bool
	last  string // the time of the last stored event
	// sockets counts those that were begun. renew ends the present one.
	sockets atomic.Int64
	renew   chan struct{}
}

// run reads until ctx ends or the events can't be read any more.
func (s *stream) run(ctx context.Context) {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, 3*time.Second
	began := time.Now()
	for {
		before := len(s.seen)
		err := s.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if len(s.seen) > before {
			b.Reset()
			began = time.Now()
		}
		if err = s.final(err, time.Since(began)); err != nil {
			select {
			case s.out <- arrival{err: err}:
			case <-ctx.Done():
			}
			return
		}
		select {
		case s.notes <- "the connection is lost; connecting again":
		default:
		}
		select {
		case <-time.After(b.NextBackOff()):
		case <-ctx.Done():
			return
		}
	}
}

// final returns the error that ends the stream, nil where connecting again may help.
func (s *stream) final(err error, since time.Duration) error {
	attach := "bivouac conversations attach " + s.f.conversation
	var refused *client.Error
	isRefused := errors.As(err, &refused) && !isOutage(err)
	switch code := websocket.CloseStatus(err); {
	case code == closedUnauthorized:
		return errors.New("the API key is no longer good, or the sandbox is gone")
	case code == closedUnknown || isRefused && refused.Status == http.StatusNotFound:
		return errors.New("the conversation is gone")
	case code == closedPaused || isRefused && refused.Status == http.StatusConflict:
		return errors.New("the sandbox is paused: bivouac conversations resume " + s.f.conversation)
	case isRefused || errors.Is(err, client.ErrUnexpected):
		return err
	case since > outageTime:
		return fmt.Errorf("no node answers; the conversation goes on: %s: %w", attach, err)
	}
	return nil
}

// read reads over one socket until it ends.
func (s *stream) read(ctx context.Context) error {
	s.sockets.Add(1)
	newest, err := s.newest(ctx)
	if err != nil {
		return err
	}
	q := url.Values{"resend_mode": {"all"}}
	if at := s.resendFrom(); at != "" {
		q = url.Values{"resend_mode": {"since"}, "after_timestamp": {at}}
	}
	conn, err := s.dial(ctx, s.f.agent("/sockets/events/"+url.PathEscape(s.f.conversation)+"?"+q.Encode()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	stop := s.ping(ctx, conn)
	defer stop()
	current := newest == "" || s.seen[newest]
	if current {
		if err := s.send(ctx, arrival{current: true}); err != nil {
			return err
		}
	}
	for {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			return err
		}
		e, err := event.Decode(frame)
		if err != nil {
			return fmt.Errorf("the agent server sent no event: %w", err)
		}
		stored := isStored(e)
		id := e.Envelope().ID
		if stored && !s.fresh(id, e.Envelope().Timestamp) {
			continue
		}
		if stored && id == newest {
			current = true
		}
		if err := s.send(ctx, arrival{raw: frame, event: e, current: current}); err != nil {
			return err
		}
	}
}

// dial opens a WebSocket. A refusal is a client.Error.
func (s *stream) dial(ctx context.Context, path string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, socketTime)
	defer cancel()
	c := s.f.client
	untimed := *c.HTTP
	untimed.Timeout = 0
	conn, resp, err := websocket.Dial(ctx, c.Address+path, &websocket.DialOptions{
		HTTPClient: &untimed, HTTPHeader: http.Header{"X-Session-Api-Key": {c.Key}},
	})
	switch {
	case err == nil:
		conn.SetReadLimit(maxFrame)
		return conn, nil
	case resp == nil || resp.StatusCode == http.StatusSwitchingProtocols:
		return nil, err
	}
	defer resp.Body.Close()
	return nil, &client.Error{Address: c.Address, Status: resp.StatusCode, Text: http.StatusText(resp.StatusCode)}
}

// fresh reports whether a stored event is to be shown: not one before the mark, and none twice.
func (s *stream) fresh(id, at string) bool {
	if s.seen[id] {
		return false
	}
	if len(s.seen) == 0 && s.from.id != "" && id != s.from.id {
		return false
	}
	s.seen[id] = true
	s.last = at
	return true
}

// resendFrom is the time from which events are sent again, "" for all.
func (s *stream) resendFrom() string {
	if s.last != "" {
		return s.last
	}
	return s.from.at
}

func (s *stream) send(ctx context.Context, a arrival) error {
	a.socket = s.sockets.Load()
	select {
	case s.out <- a:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newest returns the id of the last stored event, "" if there is none yet.
func (s *stream) newest(ctx context.Context) (string, error) {
	m, err := s.f.newestEvent(ctx, url.Values{})
	return m.id, err
}

// newestEvent returns the last stored event that a query finds.
func (f *runFollower) newestEvent(ctx context.Context, query url.Values) (mark, error) {
	query.Set("sort_order", "TIMESTAMP_DESC")
	query.Set("limit", "1")
	var page wire.Page[event.Head]
	err := f.client.Call(ctx, http.MethodGet, f.of("/events/search?"+query.Encode()), nil, &page)
	if err != nil || len(page.Items) == 0 {
		return mark{}, err
	}
	return mark{page.Items[0].ID, page.Items[0].Timestamp}, nil
}

// ping closes a socket whose other side does not answer, or that is to be renewed. The returned function ends it.
func (s *stream) ping(ctx context.Context, conn *websocket.Conn) func() {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := time.NewTicker(pingPause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.renew:
				_ = conn.CloseNow()
				return
			case <-tick.C:
			}
			waiting, done := context.WithTimeout(ctx, pingTime)
			err := conn.Ping(waiting)
			done()
			if err != nil {
				_ = conn.CloseNow()
				return
			}
		}
	}()
	return cancel
}

// isStored reports whether an event is in the conversation's history.
func isStored(e event.Event) bool {
	switch e := e.(type) {
	case *event.StreamingDelta, *event.ServerError:
		return false
	case *event.StateUpdate:
		return e.Key != "full_state" && e.Key != event.KeyModelQueue
	}
	return true
}
