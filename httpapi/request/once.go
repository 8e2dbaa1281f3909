package request

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
	"bivouac.dev/bivouac/httpapi/response"
)

func (c *Call) readKey() {
	sent := c.Request.Header.Values(HeaderIdempotencyKey)
	if len(sent) == 0 {
		return
	}
	key := sent[0]
	visible := !slices.ContainsFunc([]byte(key), func(b byte) bool { return b < 0x21 || b > 0x7e })
	if len(sent) > 1 || key == "" || len(key) > MaxIdempotencyKey || !visible {
		c.Problems.Value([]string{"header", HeaderIdempotencyKey},
			fmt.Sprintf("must be given once, with 1 to %d visible ASCII characters", MaxIdempotencyKey), decode.Echo(key, true))
		return
	}
	c.Key = key
}

// Once runs a POST at most once. prepare builds the command's body and lists the secrets to store.
// render builds the response from the command's result alone. A repeated Idempotency-Key skips
// prepare and so has no side effects.
func (c *Call) Once(
	prepare func() (fsm.Body, SecretWrites, error),
	render func(fsm.Result) (response.Response, error),
) (response.Response, error) {
	if c.Key != "" {
		res, found, err := c.Recorded()
		if err != nil {
			return response.Response{}, err
		}
		if found {
			return render(res)
		}
	}
	body, writes, err := prepare()
	if err != nil {
		return response.Response{}, err
	}
	// Check first: a command that the log refuses must leave no secrets behind.
	if err := c.validate(body); err != nil {
		return response.Response{}, err
	}
	if len(writes.list) > 0 {
		if err := c.checkSize(body); err != nil {
			return response.Response{}, err
		}
		if err := c.Confirm(); err != nil {
			return response.Response{}, err
		}
		if err := c.admitSecrets(body, &writes); err != nil {
			return response.Response{}, err
		}
		if err := writes.write(c.Ctx(), c.server.Secrets); err != nil {
			return response.Response{}, err
		}
	}
	res, err := c.Propose(body)
	c.discard(writes, res, err)
	if err != nil {
		return response.Response{}, err
	}
	return render(res)
}

// validate makes the checks of Apply that need nothing but the protocol version. One that was set
// through this node a moment ago counts.
func (c *Call) validate(body fsm.Body) (refusal error) {
	cmd := c.Command(body)
	for _, consistency := range []cluster.Consistency{cluster.Local, cluster.Stale} {
		v, err := c.server.Cluster.View(c.Ctx(), consistency)
		if err != nil {
			return fmt.Errorf("reading the protocol version: %w", err)
		}
		if refusal = v.Validate(cmd); refusal == nil {
			return nil
		}
	}
	return refusal
}

// admitSecrets refuses what the state has no room for before its secrets are written: a refused
// request must not make the secret store grow.
func (c *Call) admitSecrets(body fsm.Body, writes *SecretWrites) error {
	if err := writes.check(); err != nil {
		return err
	}
	v, err := c.server.Cluster.View(c.Ctx(), cluster.Stale) // c was confirmed: the view is current
	if err != nil {
		return fmt.Errorf("reading the limits: %w", err)
	}
	if v.Active(fsm.VersionRoom) {
		writes.count()
	}
	if over := v.GrowthAdmission(c.Command(body)); over != nil {
		return over
	}
	return nil
}

// alwaysFits is the largest request body whose command surely fits the log, in bytes: JSON escapes
// a byte as six at most.
const alwaysFits = fsm.MaxCommandBytes / 8

// checkSize returns the error of Propose for a command that is too large for the log. It encodes a
// large command once more, so only requests that store secrets first need it.
func (c *Call) checkSize(body fsm.Body) error {
	if len(c.Body) <= alwaysFits {
		return nil
	}
	_, err := c.Command(body).Encode()
	return err
}

// discard deletes the secrets written for this request that its command did not take: it was
// refused, an earlier result was returned, or a warm sandbox was claimed. If the outcome is unknown
// the collector decides. The deletion runs in the background; Run waits for it.
func (c *Call) discard(writes SecretWrites, res fsm.Result, err error) {
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Ctx()), s.RequestTimeout)
	s.discards.Go(func() {
		defer cancel()
		if err := writes.discard(ctx, s.Secrets); err != nil {
			s.Log.Info("a secret that nothing refers to is left to the collector", "error", err)
		}
	})
}

// refersTo reports whether a command's result refers to the entry.
func refersTo(res fsm.Result, path string) bool {
	return res.Sandbox != nil && res.Sandbox.KeyRef.Path == path ||
		res.StartTask != nil && res.StartTask.Secrets.Path == path
}

// Recorded looks up the result of an earlier request with the same key.
func (c *Call) Recorded() (fsm.Result, bool, error) {
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return fsm.Result{}, false, err
	}
	res, failed, fingerprint, found := v.CommandResultAt(c.CommandID(), c.Now)
	switch {
	case !found:
		return fsm.Result{}, false, nil
	case fingerprint != c.Fingerprint():
		return fsm.Result{}, false, fsm.Errorf(fsm.CodeIdempotencyMismatch, "idempotency key used before")
	case failed != nil:
		return fsm.Result{}, false, failed
	}
	c.Index = res.Index
	return res, true, nil
}

// CommandID returns the command's id: random, or a function of the caller and the Idempotency-Key.
func (c *Call) CommandID() string {
	if c.Key == "" {
		return uuid.NewString()
	}
	key := c.Key
	if len(key) > 64 {
		sum := sha256.Sum256([]byte(key))
		// Longer than 64 characters, so it can't equal a key that is used as it is.
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	id := "idem:" + c.Caller.User + ":" + key
	if len(id) > fsm.MaxCommandID {
		sum := sha256.Sum256([]byte(id))
		// No other id starts with "idem#", so this one can't collide.
		id = "idem#" + hex.EncodeToString(sum[:])
	}
	return id
}

// Fingerprint hashes the method, path, query and body of a request with an Idempotency-Key.
func (c *Call) Fingerprint() string {
	h := sha256.New()
	for _, part := range []string{c.Request.Method, c.Request.URL.Path, c.Request.URL.RawQuery} {
		fmt.Fprintf(h, "%d:%s\n", len(part), part)
	}
	h.Write(c.Body)
	return hex.EncodeToString(h.Sum(nil))
}
