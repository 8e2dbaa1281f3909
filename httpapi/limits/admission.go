// Package limits bounds what requests take of a node: open connections, requests at a time, bytes of
// bodies and answers, and requests a second. It knows nothing of what a request is for.
package limits

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"bivouac.dev/bivouac/httpapi/response"
)

// The bounds of one user's requests on a node (API.md, "Limits").
const (
	// UserRequests execute at a time, UserQueue wait for them to end.
	UserRequests = 64
	UserQueue    = 256
	// userBodies bounds the bodies of a user's requests in progress, allBodies those of all users, in
	// bytes. Bodies of up to FreeBytes do not count.
	userBodies = 24 << 20
	allBodies  = 96 << 20
)

// Admission keeps the requests of one user from delaying those of others. A user's requests above
// UserRequests wait in order, and above UserQueue they are refused. Work on large bodies and
// answers, which keeps a processor busy, is done by one request of a user at a time and on half of
// the processors. Users take turns there, and small requests never wait for it.
type Admission struct {
	// turns are for work on large data, bodies are bytes of bodies.
	turns, bodies *semaphore.Weighted

	mu    sync.Mutex
	users map[string]*userAdmission
}

// userAdmission is one user's. At most one request of a user waits for the turns of all users, so
// the order of the semaphore is that of the users.
type userAdmission struct {
	requests, turn, bodies *semaphore.Weighted
	// inside are the requests that execute or wait. The Admission's mutex guards it.
	inside int
}

// Slot is an admitted request. The nil slot, of a request without a user, needs to wait for nothing.
type Slot struct {
	of   *Admission
	user string
	mine *userAdmission
	// turn is set while the request works on large data. body is what it holds of bodies.
	turn bool
	body int64
}

// NewAdmission gives large requests half of the processors.
func NewAdmission(processors int) *Admission {
	return &Admission{
		turns:  semaphore.NewWeighted(int64(max(1, processors/2))),
		bodies: semaphore.NewWeighted(allBodies), users: map[string]*userAdmission{},
	}
}

// ErrUserRequests is the cause of a refusal by the admission.
var ErrUserRequests = errors.New("the user has too many requests in progress")

// errBusy is the refusal of a request whose user has too many.
func errBusy() *response.HTTPError {
	return &response.HTTPError{
		Status: http.StatusTooManyRequests, RetryAfter: time.Second, Cause: ErrUserRequests,
		Text: "Too many of your requests are in progress on this node; nothing was done. " +
			"Wait for their answers, or try again.",
	}
}

// Enter waits until one more request of a user may execute.
func (a *Admission) Enter(user string, ctx func() context.Context) (*Slot, error) {
	a.mu.Lock()
	u := a.users[user]
	if u == nil {
		u = &userAdmission{
			requests: semaphore.NewWeighted(UserRequests), turn: semaphore.NewWeighted(1),
			bodies: semaphore.NewWeighted(userBodies),
		}
		a.users[user] = u
	}
	if u.inside == UserRequests+UserQueue {
		a.mu.Unlock()
		return nil, errBusy()
	}
	u.inside++
	a.mu.Unlock()
	if err := await(ctx, u.requests, 1); err != nil {
		a.forget(user, u)
		return nil, err
	}
	return &Slot{of: a, user: user, mine: u}, nil
}

// Count is how many users have requests that execute or wait.
func (a *Admission) Count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.users)
}

// forget counts a request that is neither executed nor waiting any more.
func (a *Admission) forget(user string, u *userAdmission) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u.inside--; u.inside == 0 {
		delete(a.users, user)
	}
}

// await takes of a semaphore within the request's time.
func await(ctx func() context.Context, s *semaphore.Weighted, n int64) error {
	if s.TryAcquire(n) {
		return nil
	}
	err := s.Acquire(ctx(), n)
	if errors.Is(err, context.DeadlineExceeded) {
		return errBusy()
	}
	return err
}

// awaitBoth takes of a user's semaphore and then of all users'.
func awaitBoth(ctx func() context.Context, user, all *semaphore.Weighted, n int64) error {
	if err := await(ctx, user, n); err != nil {
		return err
	}
	if err := await(ctx, all, n); err != nil {
		user.Release(n)
		return err
	}
	return nil
}

// TakeTurn waits until the request may work on large data. The turn ends with EndTurn, before the
// request waits for anything else.
func (s *Slot) TakeTurn(ctx func() context.Context) error {
	if s == nil || s.turn {
		return nil
	}
	if err := awaitBoth(ctx, s.mine.turn, s.of.turns, 1); err != nil {
		return err
	}
	s.turn = true
	return nil
}

// EndTurn ends the turn, if the request has it.
func (s *Slot) EndTurn() {
	if s != nil && s.turn {
		s.turn = false
		s.of.turns.Release(1)
		s.mine.turn.Release(1)
	}
}

// HoldBody waits until there is room for a body of n bytes, which Leave gives back.
func (s *Slot) HoldBody(ctx func() context.Context, n int64) error {
	if n = min(n, userBodies); s == nil || n <= FreeBytes {
		return nil
	}
	if err := awaitBoth(ctx, s.mine.bodies, s.of.bodies, n); err != nil {
		return err
	}
	s.body = n
	return nil
}

// Leave ends the request.
func (s *Slot) Leave() {
	if s == nil {
		return
	}
	s.EndTurn()
	if s.body > 0 {
		s.of.bodies.Release(s.body)
		s.mine.bodies.Release(s.body)
	}
	s.mine.requests.Release(1)
	s.of.forget(s.user, s.mine)
}
