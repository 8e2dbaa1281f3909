package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

func (c *call) readKey() {
	sent := c.r.Header.Values(headerIdempotencyKey)
	if len(sent) == 0 {
		return
	}
	key := sent[0]
	visible := !slices.ContainsFunc([]byte(key), func(b byte) bool { return b < 0x21 || b > 0x7e })
	if len(sent) > 1 || key == "" || len(key) > maxIdempotencyKey || !visible {
		c.errs.Value([]string{"header", headerIdempotencyKey},
			fmt.Sprintf("must be given once, with 1 to %d visible ASCII characters", maxIdempotencyKey), decode.Echo(key, true))
		return
	}
	c.key = key
}

// once runs a POST at most once. prepare builds the command's body and lists the secrets to store.
// render builds the response from the command's result alone. A repeated Idempotency-Key skips
// prepare and so has no side effects.
func (c *call) once(
	prepare func() (fsm.Body, secretWrites, error),
	render func(fsm.Result) (answer, error),
) (answer, error) {
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
	// Check first: a command that the log refuses must leave no secrets behind.
	v, err := c.server.cluster.View(c.ctx(), cluster.Stale)
	if err != nil {
		return answer{}, fmt.Errorf("reading the protocol version: %w", err)
	}
	if err := v.Validate(c.command(body)); err != nil {
		return answer{}, err
	}
	if len(writes.list) > 0 {
		if err := c.checkSize(body); err != nil {
			return answer{}, err
		}
		if err := c.confirm(); err != nil {
			return answer{}, err
		}
		if err := c.admitSecrets(body, &writes); err != nil {
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

// admitSecrets refuses what the state has no room for before its secrets are written: a refused
// request must not make the secret store grow.
func (c *call) admitSecrets(body fsm.Body, writes *secretWrites) error {
	if err := writes.check(); err != nil {
		return err
	}
	v, err := c.server.cluster.View(c.ctx(), cluster.Stale) // c was confirmed: the view is current
	if err != nil {
		return fmt.Errorf("reading the limits: %w", err)
	}
	if v.Active(fsm.VersionRoom) {
		writes.count()
	}
	if over := v.GrowthAdmission(c.command(body)); over != nil {
		return over
	}
	return nil
}

// alwaysFits is the largest request body whose command surely fits the log, in bytes: JSON escapes
// a byte as six at most.
const alwaysFits = fsm.MaxCommandBytes / 8

// checkSize returns the error of Propose for a command that is too large for the log. It encodes a
// large command once more, so only requests that store secrets first need it.
func (c *call) checkSize(body fsm.Body) error {
	if len(c.body) <= alwaysFits {
		return nil
	}
	_, err := c.command(body).Encode()
	return err
}

// discard deletes the secrets written for this request that its command did not take: it was
// refused, an earlier result was returned, or a warm sandbox was claimed. If the outcome is unknown
// the collector decides. The deletion runs in the background; Run waits for it.
func (c *call) discard(writes secretWrites, res fsm.Result, err error) {
	switch fsm.CodeOf(err) {
	case fsm.CodeOutcomeUnknown, fsm.CodeInternal:
		return
	}
	writes.list = slices.DeleteFunc(slices.Clone(writes.list), func(one secretWrite) bool {
		return !one.alone ||
			refersTo(res, one.path)
	})
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

// refersTo reports whether a command's result refers to the entry.
func refersTo(res fsm.Result, path string) bool {
	return res.Sandbox != nil && res.Sandbox.KeyRef.Path == path ||
		res.StartTask != nil && res.StartTask.Secrets.Path == path
}

// recorded looks up the result of an earlier request with the same key.
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

// commandID returns the command's id: random, or a function of the caller and the Idempotency-Key.
func (c *call) commandID() string {
	if c.key == "" {
		return uuid.NewString()
	}
	key := c.key
	if len(key) > 64 {
		sum := sha256.Sum256([]byte(key))
		// Longer than 64 characters, so it can't equal a key that is used as it is.
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	id := "idem:" + c.who.user + ":" + key
	if len(id) > fsm.MaxCommandID {
		sum := sha256.Sum256([]byte(id))
		// No other id starts with "idem#", so this one can't collide.
		id = "idem#" + hex.EncodeToString(sum[:])
	}
	return id
}

// fingerprint hashes the method, path, query and body of a request with an Idempotency-Key.
func (c *call) fingerprint() string {
	h := sha256.New()
	for _, part := range []string{c.r.Method, c.r.URL.Path, c.r.URL.RawQuery} {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	h.Write(c.body)
	return hex.EncodeToString(h.Sum(nil))
}
