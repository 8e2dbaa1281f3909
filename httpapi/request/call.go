// Package request has what every handler of the API needs of one authenticated request: its body and
// query, views in which its key is good, its command, and what it does at most once.
package request

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/response"
)

// Headers that only Bivouac has.
const (
	HeaderConsistency    = "X-Bivouac-Consistency"
	HeaderIdempotencyKey = "Idempotency-Key"
)

// maxAnnounced is the most memory that Content-Length alone can reserve for a body, in bytes.
const maxAnnounced = 64 << 10

// MaxIdempotencyKey bounds the Idempotency-Key header, in characters.
const MaxIdempotencyKey = 255

// Call is one authenticated request and what its handler needs.
type Call struct {
	server  *Server
	Request *http.Request
	Params  httprouter.Params
	Caller  Caller
	// Now is the command's time. It is read once, before any secret is written: the age of a
	// command then bounds the age of the secrets that it refers to.
	Now  time.Time
	Body []byte
	// Writer is for upload handlers, which set the connection's deadlines.
	Writer   http.ResponseWriter
	Problems *decode.Problems
	Query    decode.Query
	// Key is the Idempotency-Key, "" if there is none.
	Key string
	// Index is the log index that the response is based on.
	Index uint64
	// acted is set when the log has the operator's act.
	acted bool
	// confirmed is set when a linearizable view of this request has accepted the key.
	confirmed bool

	// members are all that the body may have; nil is any.
	members *[]string
	// held is what the answer takes of the server's budget, in bytes.
	held int
	// slot is the request's place among those of its user; nil without a user and once it is left.
	slot *limits.Slot

	// timed is what Ctx returns, created on first use. end cancels it.
	timed context.Context
	end   context.CancelFunc
}

// New begins a request.
func New(s *Server, r *http.Request, params httprouter.Params) Call {
	problems := &decode.Problems{}
	return Call{
		server: s, Request: r, Params: params, Now: time.Now(), Problems: problems, Query: decode.Query{Problems: problems},
	}
}

// Caller is the sender of an authenticated request.
type Caller struct {
	User     string
	Operator bool
	// Bearer is set when the key came in the Authorization header.
	Bearer bool
	// Credential goes into commands; views check it too.
	Credential fsm.Credential
	// Key is the key itself, of an operator alone: the leader is given a proof of it.
	Key string
}

// Ctx returns the context of the request's work, which ends after RequestTimeout. It is created on
// first use, because most reads never wait.
func (c *Call) Ctx() context.Context {
	if c.timed == nil {
		c.timed, c.end = context.WithDeadline(c.Request.Context(), c.Now.Add(c.server.RequestTimeout))
	}
	return c.timed
}

// OperatorCtx is Ctx with the operator's key behind the request. The leader asks for a proof of it.
func (c *Call) OperatorCtx() context.Context {
	if !c.Caller.Operator {
		return c.Ctx()
	}
	return cluster.AsOperator(c.Ctx(),
		cluster.Operator{UserID: c.Caller.User, Lookup: c.Caller.Credential.Lookup, Key: c.Caller.Key})
}

// Restrict makes Object refuse members that are not listed, for an operator's route.
func (c *Call) Restrict(members *[]string) { c.members = members }

// Enter takes a place among the requests of a user, which LeaveSlot or Close gives back.
func (c *Call) Enter(a *limits.Admission, user string) (err error) {
	c.slot, err = a.Enter(user, c.Ctx)
	return err
}

// TurnToRead waits for a turn to read a large body once more after a view, until Check.
func (c *Call) TurnToRead() error {
	if len(c.Body) <= limits.FreeBytes {
		return nil
	}
	return c.slot.TakeTurn(c.Ctx)
}

// TurnToAnswer waits for a turn to encode the answer to a large body. The request is answered in any
// case: the work is done.
func (c *Call) TurnToAnswer() {
	if len(c.Body) > limits.FreeBytes {
		_ = c.slot.TakeTurn(c.Ctx)
	}
}

// LeaveSlot ends the request's part in the admission. Sending the answer needs none: it waits for
// the client.
func (c *Call) LeaveSlot() {
	c.slot.Leave()
	c.slot = nil
}

// Close releases the context that Ctx created, the answer's budget and the slot.
func (c *Call) Close() {
	c.LeaveSlot()
	if c.held > 0 {
		c.server.Answers.Give(c.Caller.User, c.held)
		c.held = 0
	}
	if c.end != nil {
		c.end()
	}
}

// Renew replaces the request's deadline and detaches it from the client. Use it after a step that
// can't be rolled back.
func (c *Call) Renew() {
	if c.end != nil {
		c.end()
	}
	c.Now = time.Now()
	c.timed, c.end = context.WithTimeout(context.WithoutCancel(c.Request.Context()), c.server.RequestTimeout)
}

// Read reads the query and the body. An upload's handler reads its body itself.
func (c *Call) Read(w http.ResponseWriter, limit int64, upload bool) error {
	c.Writer = w
	c.Query = decode.Query{Problems: c.Problems}
	if c.Request.URL.RawQuery != "" {
		c.Query.Values, _ = url.ParseQuery(c.Request.URL.RawQuery) // malformed parts are ignored
	}
	if c.Request.Method == http.MethodPost {
		c.readKey()
	}
	if c.Request.Method == http.MethodGet || c.Request.Method == http.MethodHead {
		return nil
	}
	coded, known := isCoded(c.Request)
	if !known || coded && upload {
		return errEncoding(w)
	}
	if upload {
		return nil
	}
	if !decode.InUTF8(c.Request.Header.Get("Content-Type")) {
		return response.Error(http.StatusUnsupportedMediaType, "Unsupported charset: send JSON in UTF-8")
	}
	tooLarge := response.Error(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("Request body is larger than %d bytes", limit))
	if c.Request.ContentLength > limit {
		return tooLarge
	}
	body, err := c.readBody(http.MaxBytesReader(w, c.Request.Body, limit), coded, limit)
	var over *http.MaxBytesError
	var busy *response.HTTPError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case errors.As(err, &busy):
		w.Header().Set("Connection", "close") // the body is not read
		return err
	case err != nil:
		return response.Error(http.StatusBadRequest, "Request body could not be read")
	}
	c.Body = body
	if len(body) > limits.FreeBytes {
		return c.slot.TakeTurn(c.Ctx)
	}
	return nil
}

// readBody reads the whole body. A gzip body is decompressed, up to limit bytes. What is above
// limits.FreeBytes waits for room.
func (c *Call) readBody(r io.Reader, coded bool, limit int64) ([]byte, error) {
	size := c.Request.ContentLength // -1 if unknown
	if coded {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("unpacking: %w", err)
		}
		r, size = bounded(z, limit), -1
	}
	var b bytes.Buffer
	if size < 0 {
		if _, err := io.CopyN(&b, r, limits.FreeBytes); err != nil {
			return b.Bytes(), unlessEnd(err)
		}
		size = limit
	}
	if size > limits.FreeBytes {
		if err := c.slot.HoldBody(c.Ctx, size); err != nil {
			return nil, err
		}
	}
	if b.Len() == 0 {
		b.Grow(int(min(size, maxAnnounced)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}

// unlessEnd is nil for io.EOF.
func unlessEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Object reads the body, which must be a JSON object. One of an operator's route has no members but
// the route's.
func (c *Call) Object() decode.Object {
	o := decode.Body(c.Problems, c.Request.Header.Get("Content-Type"), c.Body)
	if c.members != nil {
		o.Strict(*c.members...)
	}
	return o
}

// Check reports the validation errors found so far. A handler calls it after it has read everything
// and before it acts.
func (c *Call) Check() error {
	c.slot.EndTurn()
	return c.Problems.Err()
}

// View returns the view for a read: linearizable, or this node's own if the client asked for a
// stale one.
func (c *Call) View() (*fsm.View, error) {
	if c.Stale() {
		return c.ViewWith(cluster.Stale)
	}
	return c.ViewWith(cluster.Linearizable)
}

// ViewWith returns a view in which the caller's key is good, or a 401. The node that authenticated
// the request may have been behind.
func (c *Call) ViewWith(consistency cluster.Consistency) (*fsm.View, error) {
	c.slot.EndTurn()
	ctx := c.Request.Context()
	// Otherwise the read's own limit is shorter.
	if c.server.RequestTimeout < cluster.MaxReadTimeout {
		ctx = c.Ctx()
	}
	v, err := c.server.Cluster.View(ctx, consistency)
	c.server.Read(consistency, err)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if !v.Good(c.Caller.User, c.Caller.Credential, time.Now()) {
		return nil, response.Unauthorized()
	}
	c.confirmed = c.confirmed || consistency == cluster.Linearizable
	c.Index = max(c.Index, v.Index())
	return v, nil
}

// After returns a view that contains the command this request has just applied. It does not check
// the key again: the outcome is reported even if the key was revoked meanwhile.
func (c *Call) After() (*fsm.View, error) {
	v, err := c.server.Cluster.View(c.Request.Context(), cluster.Stale)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	c.Index = max(c.Index, v.Index())
	return v, nil
}

// Confirm checks with the cluster that the key is still good. Handlers call it before side effects
// outside a command, and when they read no view.
func (c *Call) Confirm() error {
	if c.confirmed {
		return nil
	}
	_, err := c.ViewWith(cluster.Linearizable)
	return err
}

// ConfirmIfLed is Confirm for operator routes that must work without a leader. Without one, this
// node's own store decides.
func (c *Call) ConfirmIfLed() error {
	if c.Stale() {
		_, err := c.ViewWith(cluster.Stale)
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), proxy.ConfirmPatience)
	defer cancel()
	v, err := c.server.Cluster.View(ctx, cluster.Linearizable)
	switch {
	case err != nil:
		_, err = c.ViewWith(cluster.Stale)
		return err
	case !v.Good(c.Caller.User, c.Caller.Credential, time.Now()):
		return response.Unauthorized()
	}
	return nil
}

// Stale reports whether the client asked for a read of this node's own store.
func (c *Call) Stale() bool {
	if strings.EqualFold(c.Request.Header.Get(HeaderConsistency), "stale") {
		return true
	}
	s, sent := c.Query.Last("stale")
	off, fault := decode.ToBool(s)
	return sent && (fault != nil || off)
}

// Command builds the command for a body. Its id is random, or derived from the Idempotency-Key.
func (c *Call) Command(body fsm.Body) fsm.Command {
	cmd := fsm.NewCommand(c.CommandID(), c.Now, c.Caller.User, body)
	cmd.Credential = c.Caller.Credential
	if c.Key != "" {
		cmd.Fingerprint = c.Fingerprint()
	}
	return cmd
}

// Propose sends one command on behalf of the caller. A failure without a code becomes
// CodeOutcomeUnknown.
func (c *Call) Propose(body fsm.Body) (fsm.Result, error) {
	cmd := c.Command(body)
	res, err := c.server.Cluster.Propose(c.OperatorCtx(), cmd)
	if err != nil {
		var coded *fsm.Error
		if !errors.As(err, &coded) {
			// The command was already on its way, so it may yet apply.
			return fsm.Result{}, errors.Join(fsm.Errorf(fsm.CodeOutcomeUnknown, "proposing %s", cmd.Type), err)
		}
		return fsm.Result{}, fmt.Errorf("proposing %s: %w", cmd.Type, err)
	}
	c.Index = max(c.Index, res.Index)
	c.noteMade(res)
	return res, nil
}
