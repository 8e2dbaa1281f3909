package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/julienschmidt/httprouter"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// The headers of our own.
const (
	headerConsistency    = "X-Bivouac-Consistency"
	headerIndex          = "X-Bivouac-Index"
	headerRequestID      = "X-Request-Id"
	headerIdempotencyKey = "Idempotency-Key"
)

// maxAnnounced is how much memory the announced length of a body gets before the
// body is there.
const maxAnnounced = 64 << 10

// maxIdempotencyKey bounds the Idempotency-Key header, in characters.
const maxIdempotencyKey = 255

// confirmPatience is how long a request waits for the cluster's word on its key
// where it can do without: longer than an election takes.
const confirmPatience = time.Second

// call is one authenticated request on its way through a handler.
type call struct {
	server *Server
	r      *http.Request
	params httprouter.Params
	who    principal
	// now is the command's time: read once, before any secret is written, so
	// that the age of a command bounds the age of the secrets it refers to.
	now  time.Time
	body []byte
	// writer is for handlers of uploads alone: it bounds how slow they may be.
	writer http.ResponseWriter
	errs   *problems
	query  query
	// key is the Idempotency-Key, "" for none.
	key string
	// index is the log index the answer rests on.
	index uint64
	// confirmed: a linearizable view of this request's has found the key good.
	confirmed bool

	// timed is ctx's, once somebody has asked for it; end ends it.
	timed context.Context
	end   context.CancelFunc
}

// ctx gives the context of the request's work, which ends with RequestTimeout.
// Most reads wait for nothing that it would have to end, so it is made when it is
// asked for.
func (c *call) ctx() context.Context {
	if c.timed == nil {
		c.timed, c.end = context.WithDeadline(c.r.Context(), c.now.Add(c.server.cfg.RequestTimeout))
	}
	return c.timed
}

// close releases what ctx made.
func (c *call) close() {
	if c.end != nil {
		c.end()
	}
}

// renew begins the request's time anew, for what has to be done after something
// that can't be undone, whether the client waits for it or not.
func (c *call) renew() {
	c.close()
	c.now = time.Now()
	c.timed, c.end = context.WithTimeout(context.WithoutCancel(c.r.Context()), c.server.cfg.RequestTimeout)
}

// dispatch runs one route: authentication, then the body, then the handler,
// whose outcome it writes.
func (s *Server) dispatch(found *route, params httprouter.Params, w http.ResponseWriter, r *http.Request) {
	ex := exchangeOf(r.Context())
	ex.route = found.label()
	if found.serve != nil {
		found.serve(s, w, r)
		return
	}
	c := &call{server: s, r: r, params: params, now: time.Now(), errs: &problems{}}
	defer c.close()
	out, err := s.run(found, c, ex, w)
	if c.index > 0 {
		w.Header()[headerIndex] = []string{strconv.FormatUint(c.index, 10)}
	}
	if err != nil {
		ex.err = err
		failureOf(err, found.shape, found.internal).write(w)
		return
	}
	ex.err = out.write(w)
}

func (s *Server) run(found *route, c *call, ex *exchange, w http.ResponseWriter) (answer, error) {
	if found.access == user || found.access == operator {
		who, err := s.keys.authenticate(c.r.Context(), c.r)
		if err != nil {
			return answer{}, err
		}
		c.who, ex.user = who, who.user
		if found.access == operator && !who.operator {
			return answer{}, refuse(http.StatusForbidden, "Forbidden")
		}
		s.lastRequest.Store(c.now.UnixNano())
	}
	c.writer = w
	if err := c.read(w, s.cfg.MaxBodyBytes, found.upload); err != nil {
		return answer{}, err
	}
	out, err := found.handle(s, c)
	if found.access == sandboxKey {
		ex.user = c.who.user
	}
	return out, err
}

// read takes in body and query; the body of an upload is its handler's.
func (c *call) read(w http.ResponseWriter, limit int64, upload bool) error {
	c.query = query{errs: c.errs}
	if c.r.URL.RawQuery != "" {
		c.query.values, _ = url.ParseQuery(c.r.URL.RawQuery) // what can't be read is ignored
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
	tooLarge := refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("Request body is larger than %d bytes", limit))
	if c.r.ContentLength > limit {
		w.Header().Set("Connection", "close")
		return tooLarge
	}
	body, err := readBody(http.MaxBytesReader(w, c.r.Body, limit), c.r.ContentLength, coded, limit)
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge
	case err != nil:
		return refuse(http.StatusBadRequest, "Request body could not be read")
	}
	c.body = body
	return nil
}

// readBody reads to the end; size is the length announced, -1 for none. What is
// coded is unpacked, to at most limit bytes.
func readBody(r io.Reader, size int64, coded bool, limit int64) ([]byte, error) {
	if coded {
		return unpackBody(r, limit)
	}
	if size < 0 || size > maxAnnounced {
		return io.ReadAll(r)
	}
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead)
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}

// readKey reads the Idempotency-Key header.
func (c *call) readKey() {
	sent := c.r.Header.Values(headerIdempotencyKey)
	if len(sent) == 0 {
		return
	}
	key := sent[0]
	visible := !slices.ContainsFunc([]byte(key), func(b byte) bool { return b < 0x21 || b > 0x7e })
	if len(sent) > 1 || key == "" || len(key) > maxIdempotencyKey || !visible {
		c.errs.value([]string{"header", headerIdempotencyKey},
			fmt.Sprintf("must be given once, with 1 to %d visible ASCII characters", maxIdempotencyKey), echo(key, true))
		return
	}
	c.key = key
}

// object reads the body, which must be a JSON object.
func (c *call) object() object {
	return decodeObject(c.errs, c.r.Header.Get("Content-Type"), c.body)
}

// check ends the reading part of a handler: from here on the request is whole
// and well-formed.
func (c *call) check() error { return c.errs.err() }

// view gives the picture a read is answered from: linearizable, or this node's
// own when the client asked for a stale one.
func (c *call) view() (*fsm.View, error) {
	if c.stale() {
		return c.viewWith(cluster.Stale)
	}
	return c.viewWith(cluster.Linearizable)
}

// viewWith gives a picture in which the caller's key is good, or a 401: the node
// that let the key in may have been behind.
func (c *call) viewWith(consistency cluster.Consistency) (*fsm.View, error) {
	ctx := c.r.Context()
	if c.server.cfg.RequestTimeout < cluster.MaxReadTimeout { // else the read's own limit comes first
		ctx = c.ctx()
	}
	v, err := c.server.cluster.View(ctx, consistency)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	if !v.Good(c.who.user, c.who.credential) {
		return nil, errUnauthorized()
	}
	c.confirmed = c.confirmed || consistency == cluster.Linearizable
	c.index = max(c.index, v.Index())
	return v, nil
}

// after gives a picture that has what this request has just had applied. The key
// is not asked about again: what was done is told, even if the key went meanwhile.
func (c *call) after() (*fsm.View, error) {
	v, err := c.server.cluster.View(c.r.Context(), cluster.Stale)
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	c.index = max(c.index, v.Index())
	return v, nil
}

// confirm asks the cluster whether the key is still good. It is for what has an
// effect before, or without, a command, and for what no view is read for.
func (c *call) confirm() error {
	if c.confirmed {
		return nil
	}
	_, err := c.viewWith(cluster.Linearizable)
	return err
}

// confirmIfLed is confirm for what operators look at when there is no leader: then
// this node's own word on the key has to do.
func (c *call) confirmIfLed() error {
	if c.stale() {
		_, err := c.viewWith(cluster.Stale)
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), confirmPatience)
	defer cancel()
	v, err := c.server.cluster.View(ctx, cluster.Linearizable)
	switch {
	case err != nil:
		_, err = c.viewWith(cluster.Stale)
		return err
	case !v.Good(c.who.user, c.who.credential):
		return errUnauthorized()
	}
	return nil
}

func (c *call) stale() bool {
	if strings.EqualFold(c.r.Header.Get(headerConsistency), "stale") {
		return true
	}
	s, sent := c.query.last("stale")
	off, fault := toBool(s)
	return sent && (fault != nil || off)
}

// command makes the command of a body, with an id of its own unless the client
// chose one.
func (c *call) command(body fsm.Body) fsm.Command {
	cmd := fsm.NewCommand(c.commandID(), c.now, c.who.user, body)
	cmd.Credential = c.who.credential
	if c.key != "" {
		cmd.Fingerprint = c.fingerprint()
	}
	return cmd
}

// propose sends one command on behalf of the caller.
func (c *call) propose(body fsm.Body) (fsm.Result, error) {
	cmd := c.command(body)
	res, err := c.server.cluster.Propose(c.ctx(), cmd)
	if err != nil {
		var coded *fsm.Error
		if !errors.As(err, &coded) {
			// The command was on its way: saying that nothing was done would be
			// a guess.
			return fsm.Result{}, errors.Join(fsm.Errorf(fsm.CodeOutcomeUnknown, "proposing %s", cmd.Type), err)
		}
		return fsm.Result{}, fmt.Errorf("proposing %s: %w", cmd.Type, err)
	}
	c.index = max(c.index, res.Index)
	return res, nil
}

// once does a POST at most once. prepare makes the command's body and names the
// secrets to store; render makes the answer from the command's result and
// nothing else that may change. A repeated Idempotency-Key skips prepare, so it
// has no side effects.
func (c *call) once(prepare func() (fsm.Body, secretWrites, error), render func(fsm.Result) (answer, error)) (answer, error) {
	if c.key != "" {
		res, found, err := c.recorded()
		if err != nil {
			return answer{}, err
		}
		if found {
			return render(res)
		}
	}
	body, writes, err := prepare()
	if err != nil {
		return answer{}, err
	}
	// What the command would be refused for must not leave secrets behind.
	if err := c.command(body).Validate(); err != nil {
		return answer{}, err
	}
	if len(writes.list) > 0 {
		if err := c.confirm(); err != nil {
			return answer{}, err
		}
	}
	if err := writes.write(c.ctx(), c.server.secrets); err != nil {
		return answer{}, err
	}
	res, err := c.propose(body)
	c.discard(writes, res, err)
	if err != nil {
		return answer{}, err
	}
	return render(res)
}

// discard has the entries deleted that were written for this request and that
// its command, which came to res or err, did not take: it was refused, it was
// answered from an earlier one, or a warm sandbox took its place. An outcome
// that is not known leaves them to the collector. It does not hold the answer
// up; Run waits for it.
func (c *call) discard(writes secretWrites, res fsm.Result, err error) {
	switch fsm.CodeOf(err) {
	case fsm.CodeOutcomeUnknown, fsm.CodeInternal:
		return
	}
	writes.list = slices.DeleteFunc(slices.Clone(writes.list), func(one secretWrite) bool { return !one.alone || refersTo(res, one.path) })
	if len(writes.list) == 0 {
		return
	}
	s := c.server
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx()), s.cfg.RequestTimeout)
	s.discards.Go(func() {
		defer cancel()
		if err := writes.discard(ctx, s.secrets); err != nil {
			s.log.Info("a secret that nothing refers to is left to the collector", "error", err)
		}
	})
}

// refersTo reports whether what a command came to holds the entry.
func refersTo(res fsm.Result, path string) bool {
	return res.Sandbox != nil && res.Sandbox.KeyRef.Path == path || res.StartTask != nil && res.StartTask.Secrets.Path == path
}

// recorded looks up what became of an earlier request with the same key.
func (c *call) recorded() (fsm.Result, bool, error) {
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return fsm.Result{}, false, err
	}
	res, failed, fingerprint, found := v.CommandResultAt(c.commandID(), c.now)
	switch {
	case !found:
		return fsm.Result{}, false, nil
	case fingerprint != c.fingerprint():
		return fsm.Result{}, false, fsm.Errorf(fsm.CodeIdempotencyMismatch, "idempotency key used before")
	case failed != nil:
		return fsm.Result{}, false, failed
	}
	c.index = res.Index
	return res, true, nil
}

// commandID makes the command's id: random, or the same one for the same
// caller and Idempotency-Key.
func (c *call) commandID() string {
	if c.key == "" {
		return uuid.NewString()
	}
	key := c.key
	if len(key) > 64 {
		sum := sha256.Sum256([]byte(key))
		// Longer than 64 itself, so no client can send it as it is.
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	id := "idem:" + c.who.user + ":" + key
	if len(id) > fsm.MaxCommandID {
		sum := sha256.Sum256([]byte(id))
		// No user's name ends like this, so no other id is the same.
		id = "idem#" + hex.EncodeToString(sum[:])
	}
	return id
}

// fingerprint is the hash of the request behind an Idempotency-Key.
func (c *call) fingerprint() string {
	h := sha256.New()
	for _, part := range []string{c.r.Method, c.r.URL.Path, c.r.URL.RawQuery} {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	h.Write(c.body)
	return hex.EncodeToString(h.Sum(nil))
}
