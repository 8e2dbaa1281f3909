package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// rqlite is three rqlited with their defaults. Each write is one request with one parameterized
// statement, not queued.
type rqlite struct {
	http  *httpLoad
	base  []string
	nodes []*process
}

func newRqlite(name, dir, program string) (*system, error) {
	addresses, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	q := &rqlite{http: newHTTPLoad()}
	s := newSystem(name, dir, program, 3, func(i int, at string) []string {
		return []string{
			"-node-id", fmt.Sprintf("n%d", i), "-http-addr", addresses[i], "-raft-addr", addresses[3+i],
			"-bootstrap-expect", "3", "-join", strings.Join(addresses[3:], ","), filepath.Join(at, "data"),
		}
	})
	s.driver, q.nodes = q, s.nodes
	for i := range 3 {
		q.base = append(q.base, "http://"+addresses[i])
	}
	return s, nil
}

// leader implements driver.
func (q *rqlite) leader(ctx context.Context) (int, error) {
	leader := ""
	for i, base := range q.base {
		if !q.nodes[i].Alive() {
			continue
		}
		if _, err := q.http.fetch(ctx, http.MethodGet, base+"/readyz", nil); err != nil {
			return 0, err
		}
		var status struct {
			Store struct {
				Leader struct {
					NodeID string `json:"node_id"`
				}
			}
		}
		if err := q.http.call(ctx, http.MethodGet, base+"/status", nil, &status); err != nil {
			return 0, err
		}
		now := status.Store.Leader.NodeID
		if now == "" || leader != "" && leader != now {
			return 0, fmt.Errorf("%s believes in leader %q", base, now)
		}
		leader = now
	}
	var at int
	if _, err := fmt.Sscanf(leader, "n%d", &at); err != nil {
		return 0, err
	}
	if !q.nodes[at].Alive() {
		return 0, errors.New("the leader is not there")
	}
	return at, nil
}

// prepare implements driver.
func (q *rqlite) prepare(ctx context.Context) error {
	create := []byte(`[["CREATE TABLE settings (user TEXT PRIMARY KEY, value TEXT NOT NULL)"]]`)
	if err := q.http.send(request(ctx, http.MethodPost, mustURL(q.base[0]+"/db/execute"), create, headers())); err != nil {
		return err
	}
	write := q.work(workWrite, 0)
	for u := range users {
		if err := write(ctx, u, 0); err != nil {
			return err
		}
	}
	return nil
}

// work implements driver.
func (q *rqlite) work(kind string, node int) load.Do {
	header := headers()
	if kind == workWrite {
		at := mustURL(q.base[node] + "/db/execute")
		return func(ctx context.Context, client, n int) error {
			u := client % users
			body := fmt.Appendf(nil, `[["INSERT OR REPLACE INTO settings(user, value) VALUES(?, ?)","user-%d",%q]]`, u,
				document(u, n))
			return q.ask(request(ctx, http.MethodPost, at, body, header))
		}
	}
	if kind != workRead {
		return nil
	}
	at := mustURL(q.base[node] + "/db/query?level=linearizable")
	return func(ctx context.Context, client, _ int) error {
		body := fmt.Appendf(nil, `[["SELECT value FROM settings WHERE user=?","user-%d"]]`, client%users)
		return q.ask(request(ctx, http.MethodPost, at, body, header))
	}
}

// ask is httpLoad.send for responses with status 200 that contain an error.
func (q *rqlite) ask(r *http.Request) error {
	resp, err := q.http.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode/100 != 2 || bytes.Contains(raw, []byte(`"error"`))) {
		err = &refused{resp.StatusCode, string(raw)}
	}
	return err
}

func (q *rqlite) close() { q.http.close() }

// mustURL parses an address this program made.
func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}
