package copies

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"gocloud.dev/blob"

	"bivouac.dev/bivouac/fsm"
)

// Collect deletes what no kept copy of the workspace needs. It keeps the newest copies, keep of
// them, up to the one that the state names. Nothing of a later number is touched: another leader may
// be making it, and the state takes only a copy that builds on the one it names. A manifest that
// can't be read ends the collection, because it may need anything.
func (s *Store) Collect(ctx context.Context, cluster, sandbox string, current fsm.Copy, keep int) error {
	newest, ok := number(current.ID)
	if !ok {
		return nil
	}
	base := dirOf(cluster, sandbox, "")
	ids, err := s.children(ctx, base)
	if err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { n, ok := number(id); return !ok || n > newest })
	slices.Sort(ids)
	slices.Reverse(ids)
	needed, kept := map[string]bool{}, 0
	for _, id := range ids {
		if kept >= keep && id != current.ID {
			continue
		}
		there, err := s.bucket.Exists(ctx, base+id+"/"+manifestName)
		if err != nil {
			return unavailable("looking for "+id, err)
		}
		// One with the number of the current copy is another leader's, which the state refused.
		if n, _ := number(id); !there || n == newest && id != current.ID {
			continue
		}
		if err := s.need(ctx, cluster, sandbox, id, needed); err != nil {
			return err
		}
		kept++
	}
	for _, id := range ids {
		err := s.each(ctx, base+id+"/", func(o *blob.ListObject) error {
			if name := strings.TrimPrefix(o.Key, base); !needed[name] {
				return s.remove(ctx, o.Key)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// need adds the objects of a copy.
func (s *Store) need(ctx context.Context, cluster, sandbox, id string, needed map[string]bool) error {
	m, err := s.openManifest(ctx, cluster, sandbox, id)
	if err != nil {
		return err
	}
	defer m.close()
	needed[path.Join(id, manifestName)] = true
	for {
		i, err := m.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, p := range i.Parts {
			needed[p.Object] = true
		}
	}
}
