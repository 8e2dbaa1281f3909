package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
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
	headerConsistency    = "X-Bivouac-Consistency"
	headerIdempotencyKey = "Idempotency-Key"
)

// maxAnnounced is the most memory that Content-Length alone can reserve for a body, in bytes.
const maxAnnounced = 64 << 10

// maxIdempotencyKey bounds the Idempotency-Key header, in characters.
const maxIdempotencyKey = 255

// call is one authenticated request and what its handler needs.
type call struct {
	server *Server
	route  *route
	r      *http.Request
	params httprouter.Params
	who    principal
	// now is the command's time. It is read once, before any secret is written: the age of a
	// command then bounds the age of the secrets that it refers to.
	now  time.Time
	body []byte
	// writer is for upload handlers, which set the connection's deadlines.
	writer http.ResponseWriter
	errs   *decode.Problems
	query  decode.Query
	// key is the Idempotency-Key, "" if there is none.
	key string
	// index is the log index that the response is based on.
	index uint64
	// acted is set when the log has the operator's act.
	acted bool
	// confirmed is set when a linearizable view of this request has accepted the key.
	confirmed bool

	// held is what the answer takes of the server's budget, in bytes.
	held int
	// slot is the request's place among those of its user; nil without a user and once it is left.
	slot *limits.Slot

	// timed is what ctx returns, created on first use. end cancels it.
	timed context.Context
	end   context.CancelFunc
}

// ctx returns the context of the request's work, which ends after RequestTimeout. It is created on
// first use, because most reads never wait.
func (c *call) ctx() context.Context {
	if c.timed == nil {
		c.timed, c.end = context.WithDeadline(c.r.Context(), c.now.Add(c.server.cfg.RequestTimeout))
	}
	return c.timed
}

// operatorCtx is ctx with the operator's key behind the request. The leader asks for a proof of it.
func (c *call) operatorCtx() context.Context {
	if !c.who.operator {
		return c.ctx()
	}
	return cluster.AsOperator(c.ctx(),
		cluster.Operator{UserID: c.who.user, Lookup: c.who.credential.Lookup, Key: c.who.key})
}

// leaveSlot ends the request's part in the admission. Sending the answer needs none: it waits for
// the client.
func (c *call) leaveSlot() {
	c.slot.Leave()
	c.slot = nil
}

// close releases the context that ctx created, the answer's budget and the slot.
func (c *call) close() {
	c.leaveSlot()
	if c.held > 0 {
		c.server.answers.Give(c.who.user, c.held)
		c.held = 0
	}
	if c.end != nil {
		c.end()
	}
}

// renew replaces the request's deadline and detaches it from the client. Use it after a step that
// can't be rolled back.
func (c *call) renew() {
	if c.end != nil {
		c.end()
	}
	c.now = time.Now()
	c.timed, c.end = context.WithTimeout(context.WithoutCancel(c.r.Context()), c.server.cfg.RequestTimeout)
}

// dispatch runs one route: authentication, body, handler. It writes the outcome.
func (s *Server) dispatch(found *route, params httprouter.Params, w http.ResponseWriter, r *http.Request) {
	ex := requestInfoOf(r.Context())
	ex.Route = found.path
	if found.direct && isForwarded(r) {
		response.FailureOf(response.NotFound(), response.FormatDetail, "").Write(w)
		return
	}
	if found.serve != nil {
		found.serve(s, w, r)
		return
	}
	c := &call{server: s, route: found, r: r, params: params, now: time.Now(), errs: &decode.Problems{}}
	defer c.close()
	out, err := s.run(found, c, ex, w)
	if c.index > 0 {
		w.Header().Set(response.HeaderIndex, strconv.FormatUint(c.index, 10))
	}
	c.logAct(found, err)
	if err != nil {
		ex.Err = err
		c.noteRefused(ex, err)
		response.FailureOf(err, found.format, found.internal).Write(w)
		return
	}
	if len(c.body) > limits.FreeBytes && out.stream == nil {
		_ = c.slot.TakeTurn(c.ctx) // it is answered in any case: the work is done
	}
	ex.Err = out.write(w, c.leaveSlot)
}

func (s *Server) run(found *route, c *call, ex *proxy.RequestInfo, w http.ResponseWriter) (answer, error) {
	if found.access == user || found.access == operator {
		who, err := s.keys.authenticate(c.r.Context(), c.r)
		if err != nil {
			return answer{}, err
		}
		c.who, ex.User = who, who.user
		if found.access == operator && !who.operator {
			ex.Refused = refusedUser
			return answer{}, response.Error(http.StatusForbidden, "Forbidden")
		}
		s.lastRequest.Store(c.now.UnixNano())
		if c.slot, err = s.admission.Enter(who.user, c.ctx); err != nil {
			return answer{}, err
		}
		if err := s.admit(c.r.Context(), limits.Client{User: who.user}); err != nil {
			return answer{}, err
		}
	}
	if found.access == sandboxKey && found.method == http.MethodPost {
		if _, _, err := c.presentedSandbox(); err != nil {
			return answer{}, err
		}
	}
	c.writer = w
	if err := c.read(w, s.live.Load().MaxBodyBytes, found.upload); err != nil {
		return answer{}, err
	}
	if found.access == operator && len(found.members) == 0 && len(c.body) > 0 {
		c.object()
		if err := c.check(); err != nil {
			return answer{}, err
		}
	}
	out, err := found.handle(s, c)
	if found.access == sandboxKey {
		ex.User = c.who.user
	}
	return out, err
}

// read reads the query and the body. An upload's handler reads its body itself.
func (c *call) read(w http.ResponseWriter, limit int64, upload bool) error {
	c.query = decode.Query{Problems: c.errs}
	if c.r.URL.RawQuery != "" {
		c.query.Values, _ = url.ParseQuery(c.r.URL.RawQuery) // malformed parts are ignored
	}
	if c.r.Method == http.MethodPost {
		c.readKey()
	}
	if c.r.Method == http.MethodGet || c.r.Method == http.MethodHead {
		return nil
	}
	coded, known := isCoded(c.r)
	if !known || coded && upload {
		return errEncoding(w)
	}
	if upload {
		return nil
	}
	if !decode.InUTF8(c.r.Header.Get("Content-Type")) {
		return response.Error(http.StatusUnsupportedMediaType, "Unsupported charset: send JSON in UTF-8")
	}
	tooLarge := response.Error(http.StatusRequestEntityTooLarge,
		fmt.Sprintf("Request body is larger than %d bytes", limit))
	if c.r.ContentLength > limit {
		return tooLarge
	}
	body, err := c.readBody(http.MaxBytesReader(w, c.r.Body, limit), coded, limit)
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
	c.body = body
	if len(body) > limits.FreeBytes {
		return c.slot.TakeTurn(c.ctx)
	}
	return nil
}

// readBody reads the whole body. A gzip body is decompressed, up to limit bytes. What is above
// freeDataBytes waits for room.
func (c *call) readBody(r io.Reader, coded bool, limit int64) ([]byte, error) {
	size := c.r.ContentLength // -1 if unknown
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
		if err := c.slot.HoldBody(c.ctx, size); err != nil {
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

// object reads the body, which must be a JSON object. One of an operator's route has no members but
// the route's.
func (c *call) object() decode.Object {
	o := decode.Body(c.errs, c.r.Header.Get("Content-Type"), c.body)
	if c.route.access == operator {
		o.Strict(c.route.members...)
	}
	return o
}

// check reports the validation errors found so far. A handler calls it after it has read everything
// and before it acts.
func (c *call) check() error {
	c.slot.EndTurn()
	return c.errs.Err()
}

// view returns the view for a read: linearizable, or this node's own if the client asked for a
// stale one.
func (c *call) view() (*fsm.View, error) {
	if c.stale() {
		return c.viewWith(cluster.Stale)
	}
	return c.viewWith(cluster.Linearizable)
}

// viewWith returns a view in which the caller's key is good, or a 401. The node that authenticated
// the request may have been behind.
func (c *call) viewWith(consistency cluster.Consistency) (*fsm.View, error) {
	c.slot.EndTurn()
	ctx := c.r.Context()
	// Otherwise the read's own limit is shorter.
	if c.server.cfg.RequestTimeout < cluster.MaxReadTimeout {
		ctx = c.ctx()
	}
	v, err := c.server.cluster.View(ctx, consistency)
	c.server.metrics.read(consistency, err)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if !v.Good(c.who.user, c.who.credential, time.Now()) {
		return nil, response.Unauthorized()
	}
	c.confirmed = c.confirmed || consistency == cluster.Linearizable
	c.index = max(c.index, v.Index())
	return v, nil
}

// after returns a view that contains the command this request has just applied. It does not check
// the key again: the outcome is reported even if the key was revoked meanwhile.
func (c *call) after() (*fsm.View, error) {
	v, err := c.server.cluster.View(c.r.Context(), cluster.Stale)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	c.index = max(c.index, v.Index())
	return v, nil
}

// confirm checks with the cluster that the key is still good. Handlers call it before side effects
// outside a command, and when they read no view.
func (c *call) confirm() error {
	if c.confirmed {
		return nil
	}
	_, err := c.viewWith(cluster.Linearizable)
	return err
}

// confirmIfLed is confirm for operator routes that must work without a leader. Without one, this
// node's own store decides.
func (c *call) confirmIfLed() error {
	if c.stale() {
		_, err := c.viewWith(cluster.Stale)
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), proxy.ConfirmPatience)
	defer cancel()
	v, err := c.server.cluster.View(ctx, cluster.Linearizable)
	switch {
	case err != nil:
		_, err = c.viewWith(cluster.Stale)
		return err
	case !v.Good(c.who.user, c.who.credential, time.Now()):
		return response.Unauthorized()
	}
	return nil
}

func (c *call) stale() bool {
	if strings.EqualFold(c.r.Header.Get(headerConsistency), "stale") {
		return true
	}
	s, sent := c.query.Last("stale")
	off, fault := decode.ToBool(s)
	return sent && (fault != nil || off)
}

// sandboxOfPath returns the caller's sandbox of the path, with the view that it is in.
func (c *call) sandboxOfPath() (*fsm.View, *fsm.Sandbox, error) {
	v, err := c.view()
	if err != nil {
		return nil, nil, err
	}
	row := v.Sandbox(c.who.user, c.params.ByName("sandbox_id"))
	if row == nil {
		return nil, nil, response.NotFound()
	}
	return v, row, nil
}

// command builds the command for a body. Its id is random, or derived from the Idempotency-Key.
func (c *call) command(body fsm.Body) fsm.Command {
	cmd := fsm.NewCommand(c.commandID(), c.now, c.who.user, body)
	cmd.Credential = c.who.credential
	if c.key != "" {
		cmd.Fingerprint = c.fingerprint()
	}
	return cmd
}

// propose sends one command on behalf of the caller. A failure without a code becomes
// CodeOutcomeUnknown.
func (c *call) propose(body fsm.Body) (fsm.Result, error) {
	cmd := c.command(body)
	res, err := c.server.cluster.Propose(c.operatorCtx(), cmd)
	if err != nil {
		var coded *fsm.Error
		if !errors.As(err, &coded) {
			// The command was already on its way, so it may yet apply.
			return fsm.Result{}, errors.Join(fsm.Errorf(fsm.CodeOutcomeUnknown, "proposing %s", cmd.Type), err)
		}
		return fsm.Result{}, fmt.Errorf("proposing %s: %w", cmd.Type, err)
	}
	c.index = max(c.index, res.Index)
	c.noteMade(res)
	return res, nil
}
