package llm

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	// bodyTimeout bounds the time in which a request's body arrives.
	bodyTimeout = 2 * time.Minute
	// freeBody are the bytes of a body that count for nobody.
	freeBody = 64 << 10
	// refusalTime is what a client has for the rest of its body after a refusal.
	refusalTime = time.Second
)

// read reads the body and what the gateway needs of it. Memory counts as bytes come, whatever
// Content-Length announces. The caller calls release.
func (q *request) read(w http.ResponseWriter, r *http.Request) (release func(), err error) {
	if r.Method == http.MethodGet {
		return func() {}, nil
	}
	a := arrival{of: q, from: http.MaxBytesReader(w, r.Body, q.gateway.cfg.MaxBody), most: q.gateway.cfg.MaxBody + 1}
	if r.ContentLength >= 0 {
		a.most = min(a.most, r.ContentLength+1) // one more, to see the end
	}
	control := http.NewResponseController(w)
	release = func() { q.gateway.bodies.give(q.row.UserID, a.held) }
	if q.body, err = a.read(control); err != nil {
		_ = control.SetReadDeadline(time.Now().Add(refusalTime)) // a writer without deadlines has none to set
		return release, err
	}
	_ = control.SetReadDeadline(time.Time{}) // likewise
	return release, q.understand()
}

// arrival is a body that is being read.
type arrival struct {
	of   *request
	from io.Reader
	// most is the size of the largest buffer, held what the user's share has.
	most, held int64
}

// read reads until the end. A pause of Config.BodyPause ends it.
func (a *arrival) read(control *http.ResponseController) ([]byte, error) {
	cfg := &a.of.gateway.cfg
	until := time.Now().Add(bodyTimeout)
	body := make([]byte, 0, min(a.most, freeBody))
	for {
		if len(body) == cap(body) {
			larger, err := a.grow(body)
			if err != nil {
				return nil, err
			}
			body = larger
		}
		deadline := time.Now().Add(cfg.BodyPause)
		if deadline.After(until) {
			deadline = until
		}
		_ = control.SetReadDeadline(deadline) // a writer without deadlines has none to set
		n, err := a.from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, refusedBody(err, cfg)
		}
	}
}

// grow returns the body in a larger buffer.
func (a *arrival) grow(body []byte) ([]byte, error) {
	size := min(2*int64(cap(body)), a.most)
	if size <= int64(cap(body)) {
		size++ // the reader returns an error now: it knows its own bound
	}
	if more := size - max(freeBody, int64(cap(body))); more > 0 {
		if !a.of.gateway.bodies.take(a.of.row.UserID, more) {
			if a.of.gateway.bodies.mayTake(more) {
				return nil, errUserBusy("of your large requests")
			}
			return nil, errBusy("large requests")
		}
		a.held += more
	}
	larger := make([]byte, len(body), size)
	copy(larger, body)
	return larger, nil
}

// refusedBody is the refusal of a body that could not be read.
func refusedBody(err error, cfg *Config) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return refuse(http.StatusRequestEntityTooLarge, reasonBody, "the request is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(http.StatusRequestTimeout, reasonBody,
			"the request's body did not arrive: no byte for %s, or not all in %s", cfg.BodyPause, bodyTimeout)
	}
	return refuse(http.StatusBadRequest, reasonBody, "the request's body could not be read")
}
