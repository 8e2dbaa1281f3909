package copies

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"
	lru "github.com/hashicorp/golang-lru/v2"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
)

// loadAtOnce is how many files are put into the order of their objects at a time. Each object is read
// once for them.
const loadAtOnce = 1 << 17

// Load writes the copy to out as a stream of package archive. Every byte is checked on the way. A
// copy that is not what was stored is archive.ErrDamaged, and out is then no whole stream.
func (s *Store) Load(ctx context.Context, cluster, sandbox string, c fsm.Copy, out io.Writer) error {
	if err := s.checked(ctx, cluster, sandbox, c); err != nil {
		return err
	}
	m, err := s.openManifest(ctx, cluster, sandbox, c.ID)
	if err != nil {
		return err
	}
	defer m.close()
	objects, err := lru.New[string, []byte](4)
	if err != nil {
		return err
	}
	l := &loader{s: s, base: dirOf(cluster, sandbox, ""), objects: objects, w: archive.NewWriter(out)}
	for {
		i, err := m.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if i.Kind != archive.KindFile && i.Kind != archive.KindLink {
			if err := l.w.Entry(i.Entry); err != nil {
				return err
			}
			continue
		}
		if l.files = append(l.files, i); len(l.files) == loadAtOnce {
			if err := l.flush(ctx); err != nil {
				return err
			}
		}
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	return l.w.Close()
}

// loader writes one copy.
type loader struct {
	s    *Store
	base string
	w    *archive.Writer
	// ids are the keys, once one was needed.
	ids []age.Identity
	// objects are those read last: small files share them.
	objects *lru.Cache[string, []byte]
	// files wait for their turn. Their directories are written.
	files []item
}

// flush writes the files in the order of their content, and links after what they name.
func (l *loader) flush(ctx context.Context) error {
	slices.SortStableFunc(l.files, func(a, b item) int {
		if a.Kind != b.Kind {
			return cmp.Compare(a.Kind, b.Kind) // "file" before "link"
		}
		if len(a.Parts) == 0 || len(b.Parts) == 0 {
			return cmp.Compare(len(a.Parts), len(b.Parts))
		}
		return cmp.Or(cmp.Compare(a.Parts[0].Object, b.Parts[0].Object), cmp.Compare(a.Parts[0].Offset, b.Parts[0].Offset))
	})
	for _, i := range l.files {
		if err := l.w.Entry(i.Entry); err != nil {
			return err
		}
		for _, p := range i.Parts {
			data, err := l.part(ctx, p)
			if err == nil {
				_, err = l.w.Write(data)
			}
			if err != nil {
				return err
			}
		}
	}
	l.files = l.files[:0]
	return nil
}

// part returns the content of a part.
func (l *loader) part(ctx context.Context, p part) ([]byte, error) {
	key := l.base + p.Object
	object, ok := l.objects.Get(key)
	if !ok {
		var err error
		if object, err = l.data(ctx, key); err != nil {
			return nil, err
		}
		l.objects.Add(key, object)
	}
	if p.Offset < 0 || p.Length < 0 || p.Offset > int64(len(object))-p.Length {
		return nil, damaged("%s ends early", key)
	}
	data := object[p.Offset : p.Offset+p.Length]
	if sum := sha256.Sum256(data); !bytes.Equal(sum[:], p.Sum) {
		return nil, damaged("%s has another checksum than its manifest says", key)
	}
	return data, nil
}

// data reads an object of data.
func (l *loader) data(ctx context.Context, key string) ([]byte, error) {
	object, err := l.s.bucket.ReadAll(ctx, key)
	if err != nil {
		return nil, unavailable("reading "+key, err)
	}
	if !strings.HasSuffix(key, sealedSuffix) {
		return object, nil
	}
	if l.ids == nil {
		if l.ids, err = l.s.identities(ctx); err != nil {
			return nil, err
		}
	}
	plain, err := opened(bytes.NewReader(object), l.ids)
	if err == nil {
		object, err = io.ReadAll(plain)
	}
	if err != nil {
		return nil, damaged("%s: %w", key, err)
	}
	return object, nil
}

// damaged returns an error that wraps archive.ErrDamaged.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{archive.ErrDamaged}, args...)...)
}
