package copies

import (
	"context"
	"errors"
	"io"
	"strings"

	"gocloud.dev/blob"

	"bivouac.dev/bivouac/fsm"
)

// object is an object of data that a copy needs.
type object struct {
	// size is what the store has, used what the copy needs of it, end where that ends.
	size, used, end int64
	// shared reports whether it has content of a file that is sent again when its object is made again.
	shared bool
}

// sealing bounds what the encryption adds to an object, in bytes.
const sealing = 2048

// gone reports whether the store lacks a part of what the copy needs.
func (o *object) gone() bool { return o.size < o.end }

// sparse reports whether less than half of the object is needed.
func (o *object) sparse() bool { return 2*o.used+sealing < o.size }

// small reports whether it can go together with others. The rest of a large file can't: it would be
// sent whole and leave the same rest.
func (o *object) small() bool { return o.shared && o.size < objectSize/8 }

// packed reports whether a file shares objects with others. A larger one begins its own.
func packed(i item) bool { return i.Content() < objectSize }

// maxSmall is how many small objects a copy may need before the next one writes their content again,
// into fewer.
const maxSmall = 32

// usage is what a copy needs of each object, by the object's name.
type usage map[string]*object

// usage reads the manifest of a copy and lists the store.
func (s *Store) usage(ctx context.Context, cluster, sandbox string, c fsm.Copy) (usage, error) {
	u := usage{}
	m, err := s.openManifest(ctx, cluster, sandbox, c.ID)
	if err != nil {
		return nil, err
	}
	defer m.close()
	for {
		i, err := m.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		for _, p := range i.Parts {
			o := u[p.Object]
			if o == nil {
				o = &object{}
				u[p.Object] = o
			}
			o.shared = o.shared || packed(i)
			o.used += p.Length
			o.end = max(o.end, p.Offset+p.Length)
		}
	}
	base := dirOf(cluster, sandbox, "")
	return u, s.each(ctx, base, func(b *blob.ListObject) error {
		if o := u[strings.TrimPrefix(b.Key, base)]; o != nil {
			o.size = b.Size
		}
		return nil
	})
}

// gone counts the objects that the store lacks.
func (u usage) gone() (n int) {
	for _, o := range u {
		if o.gone() {
			n++
		}
	}
	return n
}

// again marks the objects whose content the next copy writes again: they are gone, or mostly unused,
// or many and small. So a restore reads, and the store keeps, little that is not needed. A copy that is
// encrypted takes nothing from objects that are not. The value says whether that holds for large files
// too, whose sending costs much: what is gone or in plain must be written again.
func (u usage) again(encrypted bool) map[string]bool {
	small := 0
	for _, o := range u {
		if o.small() {
			small++
		}
	}
	list := map[string]bool{}
	for name, o := range u {
		must := o.gone() || encrypted && !strings.HasSuffix(name, sealedSuffix)
		if must || o.sparse() || o.small() && small > maxSmall {
			list[name] = must
		}
	}
	return list
}

// Check lists the objects that a copy needs. One that is missing, or a manifest that is another, is
// archive.ErrDamaged. It reads the manifest and no content: Load into io.Discard reads everything.
func (s *Store) Check(ctx context.Context, cluster, sandbox string, c fsm.Copy) error {
	if err := s.checked(ctx, cluster, sandbox, c); err != nil {
		return err
	}
	u, err := s.usage(ctx, cluster, sandbox, c)
	if err == nil && u.gone() > 0 {
		err = damaged("%d of its %d objects are gone from the store", u.gone(), len(u))
	}
	return err
}
