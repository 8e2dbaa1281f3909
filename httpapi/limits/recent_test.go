package limits

import (
	"testing"
	"time"
)

// TestRecent: a key is remembered for its time, and again from when it is added again.
func TestRecent(t *testing.T) {
	t.Parallel()
	r, at := NewRecent[string](10*time.Second), time.Unix(1000, 0)
	r.Add("a", at)
	for after, want := range map[time.Duration]bool{0: true, 9 * time.Second: true, 10 * time.Second: false} {
		if r.Has("a", at.Add(after)) != want {
			t.Errorf("after %s: %t", after, !want)
		}
	}
	if r.Has("b", at) {
		t.Error("another key is remembered")
	}
	if r.Add("a", at.Add(time.Minute)); !r.Has("a", at.Add(time.Minute)) {
		t.Error("it is not remembered again")
	}
}
