package httpapi

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/session"
)

// Limits on linearizable lookups of keys that this node's store does not have, for one client
// address (with IPv6, a /64 network). Each lookup takes part in a read round of the leader, so all
// addresses together have allUnknownKeys times as many.
const (
	unknownKeysPerSecond = 50
	unknownKeyBurst      = 100
	allUnknownKeys       = 20
	unknownKeyWait       = 3 * time.Second
)

// authenticator maps a request's API key or session to a principal.
type authenticator struct {
	cluster Cluster
	// place says where the client of a request reaches this node.
	place func(*http.Request) session.Place
	// unknown bounds the lookups of one address, allUnknown those of all.
	unknown    *limits.PerKey[netip.Prefix]
	allUnknown *rate.Limiter
	// ended are hashes of sessions that the cluster does not know or that have ended.
	ended *limits.Recent[string]
	uses  *keyUses
}

func newAuthenticator(c Cluster, place func(*http.Request) session.Place) *authenticator {
	return &authenticator{
		cluster: c, place: place, unknown: limits.NewPerKey[netip.Prefix](unknownKeysPerSecond, unknownKeyBurst),
		allUnknown: rate.NewLimiter(allUnknownKeys*unknownKeysPerSecond, allUnknownKeys*unknownKeyBurst),
		ended:      limits.NewRecent[string](endedSessionPause), uses: newKeyUses(c),
	}
}

// mayAsk reports whether the cluster may be asked about the unknown key of a request.
func (k *authenticator) mayAsk(ctx context.Context) bool {
	from := places.Origin(request.InfoOf(ctx).Address)
	return k.unknown.Allow(from) && k.allUnknown.Allow()
}

// authenticate reads the request's credentials (API.md, "Authentication"). A bearer token takes
// precedence over X-Session-API-Key, and both over a session's cookie.
func (k *authenticator) authenticate(ctx context.Context, r *http.Request) (request.Caller, error) {
	value, bearer := presented(r)
	if value == "" && !bearer && session.Carries(r) {
		return k.bySession(ctx, r)
	}
	key, err := k.find(ctx, value)
	if err != nil {
		return request.Caller{}, err
	}
	k.uses.note(key, time.Now())
	p := request.Caller{User: key.UserID, Operator: key.IsOperator(), Bearer: bearer, Credential: apikey.CredentialOf(key)}
	if p.Operator {
		p.Key = value
	}
	return p, nil
}

// presented returns the key that a request presents, "" for none, and whether it is a bearer token.
func presented(r *http.Request) (value string, bearer bool) {
	if value, bearer = apikey.Bearer(r); !bearer {
		value = r.Header.Get("X-Session-Api-Key") // in Go's form, which costs no allocation
	}
	return value, bearer
}

// find returns the stored key for a presented one, or a 401. It reads this node's own store, which
// may be behind. A key that is unknown or not good may have been acknowledged here, which a second
// look waits for. Another node may have issued an unknown key a moment ago, or enabled one that is not
// good here, so find then reads linearizably. A key that is good here may be revoked already: the
// view of a read and Apply check the credential again.
func (k *authenticator) find(ctx context.Context, value string) (*fsm.APIKey, error) {
	lookup := apikey.LookupOf(value)
	var key *fsm.APIKey
	var same, good bool
	for _, view := range []func(context.Context) (*fsm.View, error){k.viewLocal, k.viewStale, k.viewElsewhere} {
		v, err := view(ctx)
		if err != nil {
			return nil, err
		}
		key = v.APIKeyByLookup(lookup)
		same = apikey.Is(key, value)
		good = same && v.GoodKey(key, time.Now())
		if lookup == "" || key != nil && (good || !same || !mayBecomeGood(key)) {
			break
		}
	}
	if !same {
		if value != "" {
			request.InfoOf(ctx).Refused = refusedUnknown
		}
		return nil, response.Unauthorized()
	}
	if !good {
		request.InfoOf(ctx).Refused = refusedInvalid
		return nil, response.Unauthorized()
	}
	return key, nil
}

// mayBecomeGood reports whether a key that is not good in a view can be in a later one: a disabled or
// suspended key can be enabled, and so can a disabled user. Revocation and expiry are final.
func mayBecomeGood(key *fsm.APIKey) bool {
	return key.RevokedAt == nil && (key.ExpiresAt == nil || time.Now().Before(*key.ExpiresAt))
}

// viewLocal and viewStale read this node's own store.
func (k *authenticator) viewLocal(ctx context.Context) (*fsm.View, error) {
	return k.cluster.View(ctx, cluster.Local)
}

func (k *authenticator) viewStale(ctx context.Context) (*fsm.View, error) {
	return k.cluster.View(ctx, cluster.Stale)
}

// viewElsewhere reads linearizably, within the limits on unknown keys.
func (k *authenticator) viewElsewhere(ctx context.Context) (*fsm.View, error) {
	if !k.mayAsk(ctx) {
		return nil, response.TooManyRequests()
	}
	ctx, cancel := context.WithTimeout(ctx, unknownKeyWait)
	defer cancel()
	return k.cluster.View(ctx, cluster.Linearizable)
}
