package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// etcdConns is the number of gRPC connections to a node, which the clients share. RESULTS.md
// has the effect of other numbers.
const etcdConns = 8

// etcd is three etcd servers with their defaults.
type etcd struct {
	address []string
	conns   int
	clients [][]*clientv3.Client // by node
	nodes   []*process
}

func newEtcd(dir, program string, count int) (*system, error) {
	addresses, err := freeAddresses(6)
	if err != nil {
		return nil, err
	}
	var initial []string
	for i := range 3 {
		initial = append(initial, fmt.Sprintf("n%d=http://%s", i, addresses[3+i]))
	}
	e := &etcd{address: addresses[:3], conns: count}
	s := newSystem("etcd", dir, program, 3, func(i int, at string) []string {
		return []string{
			"--name", fmt.Sprintf("n%d", i), "--data-dir", filepath.Join(at, "data"),
			"--listen-client-urls", "http://" + addresses[i], "--advertise-client-urls", "http://" + addresses[i],
			"--listen-peer-urls", "http://" + addresses[3+i], "--initial-advertise-peer-urls", "http://" + addresses[3+i],
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-state", "new", "--initial-cluster-token",
			"bench",
		}
	})
	s.driver, e.nodes = e, s.nodes
	for i := range 3 {
		conns := make([]*clientv3.Client, count)
		for j := range conns {
			conns[j], err = clientv3.New(clientv3.Config{
				Endpoints:   []string{addresses[i]},
				DialTimeout: 5 * time.Second,
				Logger:      zap.NewNop(),
			})
			if err != nil {
				return nil, err
			}
		}
		e.clients = append(e.clients, conns)
	}
	return s, nil
}

// leader implements driver.
func (e *etcd) leader(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ids := map[uint64]int{}
	leader := uint64(0)
	for i, c := range e.clients {
		if !e.nodes[i].Alive() {
			continue
		}
		status, err := c[0].Status(ctx, e.address[i])
		if err != nil {
			return 0, err
		}
		if status.Leader == 0 || leader != 0 && leader != status.Leader {
			return 0, errors.New("they do not agree on a leader")
		}
		leader = status.Leader
		ids[status.Header.MemberId] = i
	}
	at, known := ids[leader]
	if !known {
		return 0, errors.New("the leader is not there")
	}
	return at, nil
}

// prepare implements driver.
func (e *etcd) prepare(ctx context.Context) error {
	for u := range users {
		if _, err := e.clients[0][0].Put(ctx, etcdKey(u), string(document(u, 0))); err != nil {
			return err
		}
	}
	return nil
}

func etcdKey(user int) string { return fmt.Sprintf("settings/user-%d", user) }

// work implements driver.
func (e *etcd) work(kind string, node int) load.Do {
	conns := e.clients[node]
	if kind == workWrite {
		return func(ctx context.Context, client, n int) error {
			u := client % users
			_, err := conns[client%e.conns].Put(ctx, etcdKey(u), string(document(u, n)))
			return err
		}
	}
	if kind != workRead {
		return nil
	}
	return func(ctx context.Context, client, _ int) error {
		got, err := conns[client%e.conns].Get(ctx, etcdKey(client%users))
		if err == nil && len(got.Kvs) != 1 {
			err = fmt.Errorf("%d values", len(got.Kvs))
		}
		return err
	}
}

func (e *etcd) close() {
	for _, conns := range e.clients {
		for _, c := range conns {
			_ = c.Close() // the process ends
		}
	}
}
