package httpapi

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// principal is who sent a request.
type principal struct {
	user     string
	operator bool
	// bearer is set when the key came in the Authorization header.
	bearer bool
	// credential is what commands carry and views are asked about.
	credential fsm.Credential
	// key is the key itself; only the operator's key route uses it.
	key string
}

// Bounds of looking for a key that this node has not heard of. Each look costs
// the leader a share of one read round.
const (
	unknownKeysPerSecond = 50
	unknownKeyBurst      = 100
	unknownKeyWait       = 3 * time.Second
)

// keyring finds out whose key a request carries.
type keyring struct {
	cluster Cluster
	unknown *rate.Limiter
}

func newKeyring(c Cluster) *keyring {
	return &keyring{cluster: c, unknown: rate.NewLimiter(unknownKeysPerSecond, unknownKeyBurst)}
}

// authenticate reads the request's credentials (api-contract.md A.0.2). A bearer
// decides who the caller is; X-Session-API-Key counts only without one.
func (k *keyring) authenticate(ctx context.Context, r *http.Request) (principal, error) {
	value, bearer := bearerOf(r)
	if !bearer {
		value = r.Header.Get("X-Session-API-Key")
	}
	key, err := k.find(ctx, value)
	if err != nil {
		return principal{}, err
	}
	return principal{user: key.UserID, operator: key.Operator, bearer: bearer, credential: credentialOf(key), key: value}, nil
}

// bearerOf gives the bearer token, and whether there is an Authorization header
// of that scheme at all.
func bearerOf(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// find gives the stored key for a presented one, or a 401. It reads this node's
// own store, which may be behind. So a key that is unknown here is looked for in
// the cluster as well, because another node may have issued it a moment ago; and
// one that is good here is not yet good: the view that a read is answered from,
// and Apply, judge its credential again.
func (k *keyring) find(ctx context.Context, value string) (*fsm.APIKey, error) {
	lookup := lookupOf(value)
	v, err := k.cluster.View(ctx, cluster.Stale)
	if err != nil {
		return nil, err
	}
	key := v.APIKeyByLookup(lookup)
	if key == nil && lookup != "" {
		if key, err = k.findElsewhere(ctx, lookup); err != nil {
			return nil, err
		}
	}
	if !matches(key, value) {
		return nil, errUnauthorized()
	}
	return key, nil
}

func (k *keyring) findElsewhere(ctx context.Context, lookup string) (*fsm.APIKey, error) {
	if !k.unknown.Allow() {
		return nil, errTooManyRequests()
	}
	ctx, cancel := context.WithTimeout(ctx, unknownKeyWait)
	defer cancel()
	v, err := k.cluster.View(ctx, cluster.Linearizable)
	if err != nil {
		return nil, err
	}
	return v.APIKeyByLookup(lookup), nil
}

// credentialOf is what a request shows by an API key.
func credentialOf(key *fsm.APIKey) fsm.Credential { return fsm.Credential{Lookup: key.Lookup} }

// matches compares in constant time and does the same work when there is no
// such key.
func matches(key *fsm.APIKey, value string) bool {
	stored := strings.Repeat("0", 64)
	if key != nil {
		stored = key.Hash
	}
	same := subtle.ConstantTimeCompare([]byte(hashKey(value)), []byte(stored)) == 1
	return same && key != nil && key.Valid()
}
