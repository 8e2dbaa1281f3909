package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// profileTime is how long a profile is taken. The load begins before and ends after it.
const profileTime = 6 * time.Second

// takeProfiles writes the CPU profile of each node of this tree under each kind of request, as
// FOLDER/KIND-NODE.pprof; go tool pprof reads them. The name ends in -asked if the node gets the
// requests, and in -leader if it leads.
func (g *guard) takeProfiles(ctx context.Context) error {
	if err := os.MkdirAll(g.profiles, 0o700); err != nil {
		return err
	}
	for _, row := range guardRows() {
		if err := g.profileRow(ctx, row); err != nil {
			return fmt.Errorf("profiles of a %s: %w", row.name, err)
		}
	}
	fmt.Fprintln(g.stdout, "the profiles are in", g.profiles)
	return nil
}

func (g *guard) profileRow(ctx context.Context, row guardRow) error {
	s, err := g.system(ctx, sysBivouac)
	if err != nil {
		return err
	}
	b, ok := s.driver.(*bivouac)
	if !ok {
		return errors.New("this system has no profiles")
	}
	s.resume()
	defer s.pause()
	leader, err := s.settled(ctx)
	if err != nil {
		return err
	}
	asked := leader
	if row.at == atFollower {
		asked = (leader + 1) % len(s.nodes)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		_, err := load.Run(ctx, load.Options{Clients: g.load.Clients, For: profileTime + 2*time.Second},
			s.work(row.kind, asked))
		return err
	})
	for i := range s.nodes {
		file := fmt.Sprintf("%s-n%d", strings.ReplaceAll(row.name, " ", "-"), i)
		if i == asked {
			file += "-asked"
		}
		if i == leader {
			file += "-leader"
		}
		group.Go(func() error {
			return b.profile(ctx, i, filepath.Join(g.profiles, file+".pprof"))
		})
	}
	return group.Wait()
}

// profile writes a node's CPU profile to a file.
func (b *bivouac) profile(ctx context.Context, node int, file string) (err error) {
	q := url.Values{"node": {fmt.Sprintf("n%d", node)}, "seconds": {fmt.Sprint(int(profileTime.Seconds()))}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		b.base[node]+"/api/v1/operator/pprof/profile?"+q.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("X-Session-API-Key", b.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", req.URL, res.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, res.Body)
	return err
}
