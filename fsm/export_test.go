package fsm

import "pgregory.net/rapid"

// Life exports life to tests in package fsm_test.
type Life = life

// NewLife begins a life at the fixtures' first time.
func NewLife(r *rapid.T) *Life { return &life{r: r, now: testEpoch} }

// Next returns the next command.
func (l *life) Next(v *View) Command { return l.next(v) }

// PooledSpec is a spec with a warm pool.
func PooledSpec() Spec {
	spec := dockerSpec("p1")
	spec.Pool = 3
	return spec
}
