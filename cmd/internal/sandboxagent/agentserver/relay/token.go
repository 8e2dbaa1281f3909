package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"bivouac.dev/bivouac/scheduler/agent"
)

// tokenTime bounds one call for a token.
const tokenTime = 15 * time.Second

// token returns a conversation's token that is not stale, which it fetches if there is none. The
// error is errNoToken where the gateway refuses one.
func (r *Relay) token(ctx context.Context, l *lease, stale string) (string, error) {
	present := func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.token == stale {
			return ""
		}
		return l.token
	}
	if t := present(); t != "" {
		return t, nil
	}
	l.fetching.Lock()
	defer l.fetching.Unlock()
	if t := present(); t != "" {
		return t, nil // another request has fetched it
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if r.key == "" {
		return "", errNoToken
	}
	l.mu.Lock()
	conversations := slices.Clone(l.conversations)
	l.mu.Unlock()
	err := errNoToken
	for _, id := range conversations {
		var t string
		if t, err = r.fetch(ctx, id); err == nil {
			l.mu.Lock()
			l.token = t
			l.mu.Unlock()
			return t, nil
		}
		if !errors.Is(err, errNoToken) {
			break
		}
	}
	return "", err
}

// fetch asks one node after the other for a token of a conversation.
func (r *Relay) fetch(ctx context.Context, id string) (string, error) {
	failed := errNoNode
	for _, n := range r.order() {
		t, err := r.fetchFrom(ctx, r.apis[n], id)
		if err == nil || errors.Is(err, errNoToken) || ctx.Err() != nil {
			return t, err
		}
		r.logger.Debug("a node gave no token", "address", r.apis[n], "error", err)
		r.note(n, false)
		failed = err
	}
	return "", failed
}

func (r *Relay) fetchFrom(ctx context.Context, api, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	body, err := json.Marshal(map[string]string{"conversation_id": id})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, api+gatewayPath+"token", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(agent.KeyHeader, r.key)
	resp, err := r.direct.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return "", errNoToken
	default:
		return "", fmt.Errorf("the gateway answers %d to a request for a token", resp.StatusCode)
	}
	var out struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<10)).Decode(&out); err != nil || out.Token == "" {
		return "", errors.New("the gateway's answer has no token")
	}
	return out.Token, nil
}
