package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// commandBytes is the size of a command of raft alone.
const commandBytes = 512

// raftAlone is three processes of ./alone.
type raftAlone struct {
	http  *httpLoad
	base  []string
	nodes []*process
}

func newRaftAlone(name, dir, program string, flags ...string) (*system, error) {
	addresses, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	a := &raftAlone{http: newHTTPLoad()}
	s := newSystem(name, dir, program, 3, func(i int, at string) []string {
		return append([]string{
			"-me", strconv.Itoa(i), "-http", addresses[i], "-peers", strings.Join(addresses[3:], ","), "-dir", filepath.Join(at,
				"data"),
		}, flags...)
	})
	s.driver, a.nodes = a, s.nodes
	for i := range 3 {
		a.base = append(a.base, "http://"+addresses[i])
	}
	return s, nil
}

// status is one member's report.
type status struct {
	State, Leader string
	Term, Applied uint64
}

func (a *raftAlone) status(ctx context.Context, i int) (st status, err error) {
	return st, a.http.call(ctx, http.MethodGet, a.base[i]+"/status", nil, &st)
}

// leader implements driver.
func (a *raftAlone) leader(ctx context.Context) (int, error) {
	leader := ""
	for i := range a.base {
		if !a.nodes[i].Alive() {
			continue
		}
		st, err := a.status(ctx, i)
		if err != nil {
			return 0, err
		}
		if st.Leader == "" || leader != "" && leader != st.Leader {
			return 0, fmt.Errorf("%s believes in leader %q", a.nodes[i].Name, st.Leader)
		}
		leader = st.Leader
	}
	var at int
	if _, err := fmt.Sscanf(leader, "n%d", &at); err != nil {
		return 0, err
	}
	if !a.nodes[at].Alive() {
		return 0, errors.New("the leader is not there")
	}
	return at, nil
}

// term implements termed.
func (a *raftAlone) term(ctx context.Context) (uint64, error) {
	st, err := a.status(ctx, 0)
	return st.Term, err
}

// prepare implements driver.
func (a *raftAlone) prepare(context.Context) error { return nil }

// work implements driver: only the leader can, because members do not forward.
func (a *raftAlone) work(kind string, node int) load.Do {
	if kind != workWrite {
		return nil
	}
	at, header := mustURL(a.base[node]+"/write"), headers()
	body := []byte(strings.Repeat("x", commandBytes))
	return func(ctx context.Context, _, _ int) error {
		return a.http.send(request(ctx, http.MethodPost, at, body, header))
	}
}

// within makes the leader load itself without HTTP.
func (a *raftAlone) within(ctx context.Context, leader int, o load.Options) (load.Result, error) {
	at := fmt.Sprintf("%s/load?clients=%d&for=%s&warm=%s&bytes=%d", a.base[leader], o.Clients, o.For, o.Warm, commandBytes)
	ctx, cancel := context.WithTimeout(ctx, o.For+o.Warm+30*time.Second)
	defer cancel()
	resp, err := a.http.client.Do(request(ctx, http.MethodPost, mustURL(at), nil, headers()))
	if err != nil {
		return load.Result{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return load.Result{}, errors.New(resp.Status)
	}
	var r load.Result
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

func (a *raftAlone) close() { a.http.close() }

// bare is one process of ./alone that returns the same bytes each time.
type bare struct {
	http *httpLoad
	base string
}

func newBare(dir, program, file string) (*system, error) {
	addresses, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	s := newSystem("bare handler", dir, program, 1, func(int, string) []string {
		return []string{"-http", addresses[0], "-bytes", file}
	})
	s.driver = &bare{newHTTPLoad(), "http://" + addresses[0]}
	return s, nil
}

// leader implements driver.
func (b *bare) leader(ctx context.Context) (int, error) {
	_, err := b.http.fetch(ctx, http.MethodGet, b.base+"/api/settings", nil)
	return 0, err
}

// prepare implements driver.
func (b *bare) prepare(context.Context) error { return nil }

// work implements driver.
func (b *bare) work(kind string, _ int) load.Do {
	if kind != workStale {
		return nil
	}
	at, header := mustURL(b.base+"/api/settings"), headers("X-Session-API-Key", strings.Repeat("x", 40))
	return func(ctx context.Context, _, _ int) error {
		return b.http.send(request(ctx, http.MethodGet, at, nil, header))
	}
}

func (b *bare) close() { b.http.close() }
