package workload

import (
	"fmt"
	"net/http"
	"sync"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// revoke creates and revokes a key, and then uses it on every node, including those that lag
// behind: no node may write or read with it.
func (a *actor) revoke() error {
	operators := func(c testcluster.Client) testcluster.Client {
		c.Key = a.of.operator
		return c
	}
	var key struct {
		ID  int
		Key string
	}
	once := a.newKey()
	err := a.until("key", func(c testcluster.Client) (bool, error) {
		in := map[string]any{"user": a.name, "name": "to be revoked"}
		answer, err := operators(c).Try(http.MethodPost, "/api/v1/operator/keys", in, "Idempotency-Key", once)
		if err == nil && answer.Status == http.StatusConflict {
			once = a.newKey() // the value was in an answer that was lost: make another key
		}
		if err == nil {
			err = answer.Decode(&key)
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	err = a.until("revoke", func(c testcluster.Client) (bool, error) {
		err := operators(c).Do(http.MethodDelete, fmt.Sprintf("/api/v1/operator/keys/%d", key.ID), nil, nil)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return a.shutOut("a revoked key", key.Key, http.MethodPost, "/api/settings", http.MethodGet, "/api/settings")
}

// leave uses the key of a deleted sandbox on every node.
func (a *actor) leave(b *owned) error {
	if b.key == "" {
		return nil // the key was never read
	}
	return a.shutOut("the key of the deleted sandbox "+b.id, b.key, http.MethodGet,
		"/api/v1/sandboxes/"+b.id+"/settings/secrets")
}

// shutOut sends the requests, pairs of methods and paths, to every node at once. None may
// succeed.
func (a *actor) shutOut(what, key string, requests ...string) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	var broken error
	for _, n := range a.nodes {
		for i := 0; i < len(requests); i += 2 {
			c, method, path := testcluster.Client{Base: n.Base, Key: key, HTTP: a.plain}, requests[i], requests[i+1]
			group.Go(func() {
				var body any
				if method == http.MethodPost {
					body = map[string]any{"language": "en"}
				}
				answer, err := c.Try(method, path, body)
				a.of.refusal(err == nil && answer.Status == http.StatusUnauthorized)
				if err == nil && answer.Status/100 == 2 {
					mu.Lock()
					defer mu.Unlock()
					broken = a.violation("%s: %s %s on %s was answered for %s: %s", a.name, method, path, n.Name, what, answer)
				}
			})
		}
	}
	group.Wait()
	return broken
}

// refusal counts a response to a request with a revoked key.
func (w *Actors) refusal(refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shut++
	if refused {
		w.refused++
	}
}
