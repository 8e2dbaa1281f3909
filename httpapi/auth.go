package httpapi

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/places"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
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

// authenticator maps a request's API key to a principal.
type authenticator struct {
	cluster Cluster
	// unknown bounds the lookups of one address, allUnknown those of all.
	unknown    *limits.PerKey[netip.Prefix]
	allUnknown *rate.Limiter
	uses       *keyUses
}

func newAuthenticator(c Cluster) *authenticator {
	return &authenticator{
		cluster: c, unknown: limits.NewPerKey[netip.Prefix](unknownKeysPerSecond, unknownKeyBurst),
		allUnknown: rate.NewLimiter(allUnknownKeys*unknownKeysPerSecond, allUnknownKeys*unknownKeyBurst),
		uses:       newKeyUses(c),
	}
}

// mayAsk reports whether the cluster may be asked about the unknown key of a request.
func (k *authenticator) mayAsk(ctx context.Context) bool {
	from := places.Origin(request.InfoOf(ctx).Address)
	return k.unknown.Allow(from) && k.allUnknown.Allow()
}

// authenticate reads the request's credentials (API.md, "Authentication"). A bearer token takes
// precedence over X-Session-API-Key.
func (k *authenticator) authenticate(ctx context.Context, r *http.Request) (request.Caller, error) {
	value, bearer := apikey.Bearer(r)
	if !bearer {
		value = r.Header.Get("X-Session-API-Key")
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

// keyUseInterval is how often a node sends the uses of keys that it saw. A key is in it at most once
// in fsm.APIKeyUseStep, whatever the number of requests.
const keyUseInterval = time.Minute

// maxKeyUses bounds the uses in one command.
const maxKeyUses = 1000

// keyUses collects which API keys this node admitted, so that one command notes them all.
type keyUses struct {
	cluster Cluster

	mu   sync.Mutex
	seen map[int]time.Time
}

func newKeyUses(c Cluster) *keyUses { return &keyUses{cluster: c, seen: map[int]time.Time{}} }

// note records a use of a key, nil for none. Most uses are within fsm.APIKeyUseStep of the stored
// one.
func (u *keyUses) note(key *fsm.APIKey, now time.Time) {
	if key == nil || key.LastUsedAt != nil && now.Sub(*key.LastUsedAt) < fsm.APIKeyUseStep {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen[key.ID] = now
}

// run sends what was noted until ctx ends. Each command has the given time.
func (u *keyUses) run(ctx context.Context, timeout time.Duration) {
	every := time.NewTicker(keyUseInterval)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			u.send(ctx, timeout)
		case <-ctx.Done():
			return
		}
	}
}

// send proposes what was noted, in one command unless there are more than maxKeyUses. Without a
// leader it stays for the next time.
func (u *keyUses) send(ctx context.Context, timeout time.Duration) {
	if v, err := u.cluster.View(ctx, cluster.Stale); err != nil || !v.Active(fsm.VersionAccess) {
		return
	}
	for uses := range slices.Chunk(u.take(), maxKeyUses) {
		own, cancel := context.WithTimeout(ctx, timeout)
		_, err := u.cluster.Propose(own, fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.APIKeyUsedBody{Uses: uses}))
		cancel()
		if err != nil {
			u.keep(uses)
		}
	}
}

// take returns the noted uses by key id and forgets them.
func (u *keyUses) take() []fsm.APIKeyUse {
	u.mu.Lock()
	defer u.mu.Unlock()
	uses := make([]fsm.APIKeyUse, 0, len(u.seen))
	for _, id := range slices.Sorted(maps.Keys(u.seen)) {
		uses = append(uses, fsm.APIKeyUse{ID: id, At: u.seen[id]})
	}
	clear(u.seen)
	return uses
}

// keep puts uses back that could not be sent, unless there are later ones.
func (u *keyUses) keep(uses []fsm.APIKeyUse) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, use := range uses {
		if use.At.After(u.seen[use.ID]) {
			u.seen[use.ID] = use.At
		}
	}
}
