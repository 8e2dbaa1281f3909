package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/limits"
)

// watchedBody calls read when it is read.
type watchedBody struct {
	io.Reader
	read func()
}

func (b watchedBody) Read(p []byte) (int, error) {
	b.read()
	return b.Reader.Read(p)
}

// postBody sends a body of events whose length is announced, or not for -1.
func (s sending) postBody(body string, announced int64, read func()) reply {
	r := httptest.NewRequest(http.MethodPost, pathWebhooks+"/events/"+s.talk,
		watchedBody{strings.NewReader(body), read})
	r.ContentLength = announced
	r.Header.Set("X-Session-Api-Key", s.key)
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return reply{status: w.Code, header: w.Header(), body: w.Body.Bytes()}
}

// TestEvents_BytesAreCountedBeforeTheBody: a sandbox that sends too many bytes is refused unread, and one
// that does not say how many are coming is refused, too.
func TestEvents_BytesAreCountedBeforeTheBody(t *testing.T) {
	t.Parallel()
	s := newSending(t)
	s.server.eventBytes = limits.NewPerKey[string](0, 3000)
	one := "[" + sentAs("a", "MessageEvent", strings.Repeat("x", 1800), 1) + "]"
	s.postBody(one, int64(len(one)), func() {}).want(t, http.StatusOK)
	s.postBody(one, int64(len(one)), func() { t.Error("the body was read") }).want(t, http.StatusTooManyRequests)
	s.postBody(one, -1, func() {}).want(t, http.StatusTooManyRequests)
	s.postBody("[]", 2, func() {}).want(t, http.StatusOK)
}

// TestEvents_AreAdmitted: while a body of a sandbox is read, the request has a place among those of its
// user's sandboxes, and so its bytes are bounded with theirs.
func TestEvents_AreAdmitted(t *testing.T) {
	t.Parallel()
	s := newSending(t)
	most := 0
	s.postBody("["+sentAs("a", "MessageEvent", strings.Repeat("x", 1<<20), 1)+"]", -1, func() {
		most = max(most, s.server.admission.Count())
	}).want(t, http.StatusOK)
	if left := s.server.admission.Count(); most != 1 || left != 0 {
		t.Errorf("%d users in the admission while the body is read, and %d later", most, left)
	}
}

// TestEvents_OfOneCallAreBounded by their number: 8 MiB of the smallest ones are 700 entries of the log.
func TestEvents_OfOneCallAreBounded(t *testing.T) {
	t.Parallel()
	s := newSending(t)
	one := `{"id":"a"},`
	res := s.post(s.key, s.talk, "", strings.Repeat(one, maxSentEvents)+one[:len(one)-1])
	res.want(t, http.StatusRequestEntityTooLarge)
	if !strings.Contains(string(res.body), "8193 events") {
		t.Errorf("it says %s", res.body)
	}
	s.post(s.key, s.talk, "", strings.Repeat(one, maxSentEvents-1)+one[:len(one)-1]).want(t, http.StatusOK)
}
