package fsm

import "pgregory.net/rapid"

// Life is life, for tests that use what imports this package.
type Life = life

// NewLife begins one at the fixtures' first time.
func NewLife(r *rapid.T) *Life { return &life{r: r, now: testEpoch} }

// Next gives the next command.
func (l *life) Next(v *View) Command { return l.next(v) }

// PooledSpec is a spec with a warm pool.
func PooledSpec() Spec {
	spec := dockerSpec("p1")
	spec.Pool = 3
	return spec
}
