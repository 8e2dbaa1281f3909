package eventstore

import (
	"github.com/cockroachdb/pebble/v2"

	"bivouac.dev/bivouac/fsm"
)

// Pin is a view of the store at one moment, which what is written and deleted later does not change. It
// holds room on the disk until Close.
type Pin struct {
	s    *Store
	view *pebble.Snapshot
}

// Pin returns a view of what is there now.
func (s *Store) Pin() (*Pin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Failure(); err != nil {
		return nil, err
	}
	p := &Pin{s: s, view: s.db.NewSnapshot()}
	s.pins[p] = struct{}{}
	return p, nil
}

// Events calls fn with the events of a chain in their order, until it returns false. fn must not keep
// stored.
func (p *Pin) Events(key fsm.ChainKey, fn func(at uint64, stored []byte) bool) error {
	return p.s.read(func() error {
		return positions(p.view, chainKey(prefixEvent, key), 0, false, fn)
	})
}

// Close gives the view up. It may be called again.
func (p *Pin) Close() error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if _, open := p.s.pins[p]; !open {
		return nil
	}
	delete(p.s.pins, p)
	return p.view.Close()
}
