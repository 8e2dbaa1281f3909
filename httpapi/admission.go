package httpapi

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
	// userRequests execute at a time, userQueue wait for them to end.
	userRequests = 64
	userQueue    = 256
	// userBodies bounds the bodies of a user's requests in progress, allBodies those of all users, in
	// bytes. Bodies of up to freeDataBytes do not count.
	userBodies = 24 << 20
	allBodies  = 96 << 20
)

// admission keeps the requests of one user from delaying those of others. A user's requests above
// userRequests wait in order, and above userQueue they are refused. Work on large bodies and
// answers, which keeps a processor busy, is done by one request of a user at a time and on half of
// the processors. Users take turns there, and small requests never wait for it.
type admission struct {
	// turns are for work on large data, bodies are bytes of bodies.
	turns, bodies *semaphore.Weighted

	mu    sync.Mutex
	users map[string]*userAdmission
}

// userAdmission is one user's. At most one request of a user waits for the turns of all users, so
// the order of the semaphore is that of the users.
type userAdmission struct {
	requests, turn, bodies *semaphore.Weighted
	// inside are the requests that execute or wait. The admission's mutex guards it.
	inside int
}

// slot is an admitted request. The nil slot, of a request without a user, needs to wait for nothing.
type slot struct {
	of   *admission
	user string
	mine *userAdmission
	// turn is set while the request works on large data. body is what it holds of bodies.
	turn bool
	body int64
}

// newAdmission gives large requests half of the processors.
func newAdmission(processors int) *admission {
	return &admission{
		turns:  semaphore.NewWeighted(int64(max(1, processors/2))),
		bodies: semaphore.NewWeighted(allBodies), users: map[string]*userAdmission{},
	}
}

// errUserRequests is the cause of a refusal by the admission.
var errUserRequests = errors.New("the user has too many requests in progress")

// errBusy is the refusal of a request whose user has too many.
func errBusy() *response.HTTPError {
	return &response.HTTPError{
		Status: http.StatusTooManyRequests, RetryAfter: time.Second, Cause: errUserRequests,
		Text: "Too many of your requests are in progress on this node; nothing was done. " +
			"Wait for their answers, or try again.",
	}
}

// enter waits until one more request of a user may execute.
func (a *admission) enter(user string, ctx func() context.Context) (*slot, error) {
	a.mu.Lock()
	u := a.users[user]
	if u == nil {
		u = &userAdmission{
			requests: semaphore.NewWeighted(userRequests), turn: semaphore.NewWeighted(1),
			bodies: semaphore.NewWeighted(userBodies),
		}
		a.users[user] = u
	}
	if u.inside == userRequests+userQueue {
		a.mu.Unlock()
		return nil, errBusy()
	}
	u.inside++
	a.mu.Unlock()
	if err := await(ctx, u.requests, 1); err != nil {
		a.forget(user, u)
		return nil, err
	}
	return &slot{of: a, user: user, mine: u}, nil
}

// forget counts a request that is neither executed nor waiting any more.
func (a *admission) forget(user string, u *userAdmission) {
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

// takeTurn waits until the request may work on large data. The turn ends with endTurn, before the
// request waits for anything else.
func (s *slot) takeTurn(ctx func() context.Context) error {
	if s == nil || s.turn {
		return nil
	}
	if err := awaitBoth(ctx, s.mine.turn, s.of.turns, 1); err != nil {
		return err
	}
	s.turn = true
	return nil
}

// endTurn ends the turn, if the request has it.
func (s *slot) endTurn() {
	if s != nil && s.turn {
		s.turn = false
		s.of.turns.Release(1)
		s.mine.turn.Release(1)
	}
}

// holdBody waits until there is room for a body of n bytes, which leave gives back.
func (s *slot) holdBody(ctx func() context.Context, n int64) error {
	if n = min(n, userBodies); s == nil || n <= freeDataBytes {
		return nil
	}
	if err := awaitBoth(ctx, s.mine.bodies, s.of.bodies, n); err != nil {
		return err
	}
	s.body = n
	return nil
}

// leave ends the request.
func (s *slot) leave() {
	if s == nil {
		return
	}
	s.endTurn()
	if s.body > 0 {
		s.of.bodies.Release(s.body)
		s.mine.bodies.Release(s.body)
	}
	s.mine.requests.Release(1)
	s.of.forget(s.user, s.mine)
}
