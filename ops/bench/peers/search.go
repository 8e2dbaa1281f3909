package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"bivouac.dev/bivouac/ops/bench/peers/load"
)

const (
	rowSearch = "search"
	// manyConversations and fewConversations are the numbers of the two users' conversations.
	manyConversations = 100_000
	fewConversations  = 1_000
)

// page is a page of the search with the same limit for both users. With two items per page the
// 500th is the last page of 1,000 conversations. With a hundred, which clients use, there are
// only ten pages, so the 500th page of the large user is compared with the tenth of the small
// one.
type page struct {
	limit     int
	many, few int
}

func (p page) String() string {
	if p.many == p.few {
		return fmt.Sprintf("page %d of %d each", p.many, p.limit)
	}
	return fmt.Sprintf("page %d of %d each (of the few: %d)", p.many, p.limit, p.few)
}

func pages() []page {
	return []page{{2, 1, 1}, {2, 500, 500}, {100, 1, 1}, {100, 500, 10}}
}

// searches compares pages of a user with many conversations with those of a user with few, on a
// follower, as linearizable reads.
func (b *bench) searches(ctx context.Context) error {
	s, err := newBivouac("search", b.dir, b.programs.bivouac, b.more+seedConfig)
	if err != nil {
		return err
	}
	b.running[rowSearch] = s
	if err := s.start(ctx); err != nil {
		return err
	}
	defer s.pause()
	ours := s.driver.(*bivouac)
	seed, err := ours.seeder()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := seed.spec(ctx); err != nil {
		return err
	}
	count := map[int]int{0: manyConversations / b.shrink, 1: fewConversations}
	for user, n := range count {
		if err := seed.conversations(ctx, userName(user), n); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.stdout, "%-14s %d and %d conversations made in %s\n", rowSearch, count[0], count[1],
		time.Since(begin).Round(time.Second))
	leader, err := s.settled(ctx)
	if err != nil {
		return err
	}
	node := (leader + 1) % len(s.nodes)
	for _, p := range pages() {
		if p.many*p.limit > count[0] {
			continue
		}
		if err := b.searchPage(ctx, ours, node, p); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) searchPage(ctx context.Context, ours *bivouac, node int, p page) error {
	many, err := ours.search(ctx, node, 0, p.limit, p.many)
	if err != nil {
		return err
	}
	few, err := ours.search(ctx, node, 1, p.limit, p.few)
	if err != nil {
		return err
	}
	for repeat := range b.repeats {
		turns := []struct {
			system string
			do     load.Do
		}{{"many", many}, {"few", few}}
		if repeat%2 == 1 {
			slices.Reverse(turns)
		}
		for _, turn := range turns {
			o := load.Options{Clients: 1, Warm: b.load.Warm, For: b.load.For}
			result, err := load.Run(ctx, o, turn.do)
			if err != nil {
				return err
			}
			fmt.Fprintf(b.stdout, "%-14s %-36s of the %-4s  p50 %7.3f ms  p99 %7.3f ms%s\n", rowSearch, p, turn.system,
				float64(result.P50)/1000, float64(result.P99)/1000, failures(result))
			if err := b.rec.write(record{
				Row:    rowSearch,
				System: turn.system,
				At:     p.String(),
				Repeat: repeat,
				Load:   &result,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func userName(user int) string { return fmt.Sprintf("user-%d", user) }

// search returns the request for a user's page. It finds the page by reading the pages before
// it.
func (b *bivouac) search(ctx context.Context, node, user, limit, page int) (load.Do, error) {
	header := headers("X-Session-API-Key", b.keys[user])
	at := mustURL(fmt.Sprintf("%s/api/v1/app-conversations/search?limit=%d", b.base[node], limit))
	for range page - 1 {
		var got struct {
			NextPageID string `json:"next_page_id"`
		}
		if err := b.http.call(ctx, http.MethodGet, at.String(), nil, &got, "X-Session-API-Key", b.keys[user]); err != nil {
			return nil, err
		}
		if got.NextPageID == "" {
			return nil, fmt.Errorf("%s has no page %d of %d each", userName(user), page, limit)
		}
		q := at.Query()
		q.Set("page_id", got.NextPageID)
		at.RawQuery = q.Encode()
	}
	var full struct{ Items []struct{} }
	if err := b.http.call(ctx, http.MethodGet, at.String(), nil, &full, "X-Session-API-Key", b.keys[user]); err != nil {
		return nil, err
	}
	if len(full.Items) != limit {
		return nil, fmt.Errorf("page %d of %s has %d conversations, not %d", page, userName(user), len(full.Items), limit)
	}
	return func(ctx context.Context, _, _ int) error {
		return b.http.send(request(ctx, http.MethodGet, at, nil, header))
	}, nil
}
