package fsm

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// key issues a key and returns its id.
func (f *fixture) key(user, lookup string, expires *time.Time) int {
	f.t.Helper()
	return f.do("root", &APIKeyCreateBody{Lookup: lookup, Hash: sha(lookup), UserID: user, ExpiresAt: expires}).APIKey.ID
}

// TestAPIKeys_EndedAreCollected: revoked and expired keys are kept for EndedKeyTTL, and at most
// EndedKeys of one user; the others stay, however old.
func TestAPIKeys_EndedAreCollected(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	good := f.key("ada", "good", nil)
	other := f.key("bob", "other", nil)
	for i := range 3 * EndedKeys {
		f.do("root", &APIKeyRevokeBody{ID: f.key("ada", fmt.Sprint("k", i), nil)})
	}
	if n := len(f.store.View().APIKeys()); n != EndedKeys+2 {
		t.Errorf("%d keys are kept, of %d that are revoked and 2 that are not", n, 3*EndedKeys)
	}
	if v := f.store.View(); v.APIKeyByLookup("k0") != nil || v.APIKeyByLookup(fmt.Sprint("k", 3*EndedKeys-1)) == nil {
		t.Error("the oldest is kept, or the newest is not")
	}
	soon := f.now.Add(time.Hour)
	f.key("bob", "short", &soon)
	f.now = f.now.Add(EndedKeyTTL + 2*time.Hour)
	last := f.key("ada", "last", nil)
	var ids []int
	for _, k := range f.store.View().APIKeys() {
		ids = append(ids, k.ID)
	}
	if fmt.Sprint(ids) != fmt.Sprint([]int{good, other, last}) {
		t.Errorf("%s later %v are kept, not %v", EndedKeyTTL, ids, []int{good, other, last})
	}
	_ = f.fails(CodeNotFound, "root", &APIKeyRevokeBody{ID: last - 1})
	if f.store.View().LastAPIKeyID() != last {
		t.Error("ids are given again")
	}
}

// TestAPIKeys_LockedOutIsAWalkOfAllKeys: LockedOut finds by its index what a walk of all keys finds,
// at every time.
func TestAPIKeys_LockedOutIsAWalkOfAllKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t).open()
		f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
		users := []string{"ada", "ad", "bob"}
		for i := range rapid.IntRange(0, 12).Draw(r, "keys") {
			var end *time.Time
			if s := rapid.IntRange(0, 20).Draw(r, "seconds"); s > 0 {
				at := f.now.Add(time.Duration(s+1) * time.Second)
				end = &at
			}
			id := f.key(rapid.SampledFrom(users).Draw(r, "user"), fmt.Sprint("k", i), end)
			switch rapid.IntRange(0, 3).Draw(r, "then") {
			case 0:
				f.do("root", &APIKeyRevokeBody{ID: id})
			case 1:
				f.do("root", &APIKeyDisableBody{ID: id})
			case 2:
				f.do("root", &APIKeyDisableBody{ID: id})
				f.do("root", &APIKeyEnableBody{ID: id})
			}
		}
		v := f.store.View()
		for _, user := range users {
			for s := -20; s < 30; s++ {
				now := f.now.Add(time.Duration(s) * time.Second).Add(time.Duration(rapid.IntRange(-1, 1).Draw(r, "ns")))
				valid := false
				for _, k := range v.APIKeys() {
					valid = valid || k.UserID == user && k.Valid(now)
				}
				if v.LockedOut(user, now) == valid {
					r.Fatalf("at %s LockedOut(%s) is %t", now, user, valid)
				}
			}
		}
	})
}

// TestAPIKeys_LockedOutReadsFewKeys: the index that each request of a sandbox reads has only the keys
// that may be valid.
func TestAPIKeys_LockedOutReadsFewKeys(t *testing.T) {
	t.Parallel()
	f := newStateFixture(t)
	f.key("ada", "good", nil)
	for i := range 50 {
		f.do("root", &APIKeyDisableBody{ID: f.key("ada", fmt.Sprint("d", i), nil)})
		f.do("root", &APIKeyRevokeBody{ID: f.key("ada", fmt.Sprint("r", i), nil)})
	}
	if n := len(collect(withPrefix[APIKey](f.store.View().txn, tableAPIKeys, indexValid, prefixOf("ada")))); n != 1 {
		t.Errorf("the index has %d keys of ada, who has one that is valid", n)
	}
}
